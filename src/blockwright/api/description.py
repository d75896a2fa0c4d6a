"""Build the metadata that an artefact stores about its functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from blockwright import __version__, ir
from blockwright.analysis.calling_convention import entry_inputs
from blockwright.api.module_attributes import check_module_attributes
from blockwright.api.several import entry_attributes
from blockwright.api.state import variables
from blockwright.codegen.function import written_parameters
from blockwright.ir.attributes import OBJECT_PARAMS, OBJECT_RESULTS, STATE
from blockwright.passes import PassContext
from blockwright.passes.host.call_memory import call_memory
from blockwright.passes.host.plan_memory import ArenaPlan, PlannedValue
from blockwright.passes.host.signature import HostResults
from blockwright.passes.host.size_text import size_text
from blockwright.passes.library.library_programs import SHARED_LIBRARIES
from blockwright.runtime.artefact import ExportedFunction, Metadata, Parameter, TargetCode
from blockwright.support.stack import deep
from blockwright.target import target_of


@deep
def describe(
    imported: ir.IRModule, lowered: ir.IRModule, compiled: ir.IRModule, context: PassContext
) -> Metadata:
    """Build the metadata of a compiled module: its target and its public graph functions.

    Arguments: `compiled` holds the programs of `lowered` as they are compiled.

    The main function is the one named "main", or the only one.
    """
    written = written_parameters(lowered)
    names = entry_names(imported)
    functions = tuple(
        _function(name, imported, lowered, written[name], compiled, context) for name in names
    )
    main = "main" if "main" in names else names[0] if len(names) == 1 else ""
    target = context.target
    programs = [f for f in lowered.functions.values() if isinstance(f, ir.PrimFunc)]
    features = tuple(sorted({n for f in programs for n in target_of(f, target).feature_set}))
    shared: Sequence[dict[str, Any]] = lowered.attrs.get(SHARED_LIBRARIES, ())
    extra: dict[str, Any] = {"libraries": list(shared)} if shared else {}
    return Metadata(
        __version__,
        target.triple,
        target.cpu,
        features,
        functions,
        main,
        extra,
        target.name,
        state=variables(imported),
    )


def describe_several(known: Sequence[Metadata]) -> Metadata:
    """Join the metadata of one model for several targets, the best first."""
    codes = [TargetCode(m.target, m.cpu, m.features, m.functions) for m in known]
    common = set[str].intersection(*(set(m.features) for m in known))
    extra, shared = known[-1].extra, list[Any]()
    for library in (each for m in known for each in m.extra.get("libraries", ())):
        if library not in shared:
            shared.append(library)
    if shared:
        extra = {**extra, "libraries": shared}
    return msgspec.structs.replace(
        known[-1],
        cpu="",
        features=tuple(sorted(common)),
        extra=extra,
        target="",
        targets=tuple(codes),
    )


def entry_names(module: ir.IRModule) -> tuple[str, ...]:
    """Names of the graph functions that callers of a compiled module see: those not private."""
    return tuple(
        name
        for name, f in module.functions.items()
        if isinstance(f, ir.GraphFunction) and "global_symbol" in f.attrs
    )


def _function(
    name: str,
    imported: ir.IRModule,
    lowered: ir.IRModule,
    written: frozenset[int] | set[int],
    compiled: ir.IRModule,
    context: PassContext,
) -> ExportedFunction:
    host: ir.PrimFunc = lowered[name]
    results: HostResults = context.options["host_results"][name]
    outputs = _results(host, results.outputs)
    total = len(outputs) + len(results.updated)
    attrs = entry_attributes(imported, name)
    check_module_attributes(imported, {name: total})
    mapped = dict(host.buffer_map)
    objects: dict[str, Any] = host.attrs.get(OBJECT_PARAMS, {})
    position = {b: k for k, b in enumerate(host.buffers)}
    orders: dict[str, Any] = attrs.get("input_orders", {})
    orders_out: Sequence[Any] = attrs.get("output_orders", ((),) * total)
    fresh = [tuple(o) for k, o in enumerate(orders_out) if k not in dict(results.updated)]
    pairs_in = frozenset[str](attrs.get("input_pairs", ()))
    pairs_out = [k in attrs.get("output_pairs", ()) for k in range(total)]
    pairs = [paired for k, paired in enumerate(pairs_out) if k not in dict(results.updated)]
    named: Sequence[str] = attrs.get("output_names", ())
    names = [n for k, n in enumerate(named) if k not in dict(results.updated)]
    lower, upper = (host.attrs.get(f"tir_var_{end}_bound", {}) for end in ("lower", "upper"))
    symbols = sorted({v.name for b in host.buffers for d in b.shape for v in ir.free_vars(d)})
    tree: Any = attrs.get("outputs_tree")

    kept = _kept(imported, name)

    def parameter(handle: ir.Var) -> Parameter:
        buffer = mapped.get(handle)
        if handle.name in objects:
            return Parameter(handle.name, objects[handle.name])
        if buffer is None:
            return Parameter(handle.name, "int", handle.dtype.name)
        order = tuple(orders.get(buffer.name, ()))
        mine = _parameter(buffer, order, position[buffer] in written)
        return msgspec.structs.replace(
            mine, state=kept.get(buffer.name, ""), paired=buffer.name in pairs_in
        )

    parameters = tuple(map(parameter, entry_inputs(host)))
    count = len(parameters) - len(kept)
    return ExportedFunction(
        name,
        parameters[:count],
        tuple(
            _parameter(b, o, name=names[k] if names else "", paired=pairs[k])
            if isinstance(b, ir.Buffer)
            else Parameter(b, "object")
            for k, (b, o) in enumerate(zip(outputs, fresh, strict=True))
        ),
        {s: (int(lower.get(s, 0)), upper.get(s)) for s in symbols},
        inputs_tree=attrs.get("inputs_tree") or _inputs_tree(imported, name),
        outputs_tree=results.tree if tree is None and total != 0 else tree,
        framework=attrs.get("framework", ""),
        updated=results.updated,
        memory=_memory(name, context.options["memory_plans"], results.outputs, lowered, compiled),
        state=parameters[count:],
    )


def _results(host: ir.PrimFunc, tensors: Sequence[ir.Buffer]) -> list[ir.Buffer | str]:
    """The results in order: buffers, and names of objects."""
    result: list[ir.Buffer | str] = [*tensors]
    slots: dict[str, int] = host.attrs.get(OBJECT_RESULTS, {})
    for name, position in sorted(slots.items(), key=lambda item: item[1]):
        result.insert(position, name.removesuffix("_slot"))
    return result


def _kept(imported: ir.IRModule, name: str) -> Mapping[str, str]:
    """The parameters of a function that are state → variables."""
    function = imported.functions[name]
    assert isinstance(function, ir.GraphFunction)
    return function.attrs.get(STATE, {})


def _parameter(
    buffer: ir.Buffer,
    order: tuple[int, ...],
    written: bool = False,
    name: str = "",
    paired: bool = False,
) -> Parameter:
    """Describe a parameter by its logical shape; the buffer has the stored (permuted) shape."""
    stored: tuple[Any, ...] = tuple(size_text(d) for d in buffer.shape)
    shape = tuple(stored[order.index(axis)] for axis in range(len(order))) if order else stored
    return Parameter(
        name or buffer.name, "tensor", buffer.dtype.name, shape, written, order, paired=paired
    )


def _inputs_tree(imported: ir.IRModule, name: str) -> Any:
    """The nesting of arguments of a function with tuples or shapes as parameters; else None."""
    function = imported.functions[name]
    assert isinstance(function, ir.GraphFunction)
    kept = _kept(imported, name)
    params = [p for p in function.params if p.name not in kept]
    trees: list[Any] = []
    position = 0
    for param in params:
        tree, position = _input_tree(param.info, position)
        trees.append(tree)
    if trees == list(range(len(trees))):
        return None
    names = [param.name for param in params]
    return {"names": names, "positional": len(names), "trees": trees}


def _input_tree(info: ir.Info | None, position: int) -> tuple[Any, int]:
    """The structure of a parameter, and the number of leaves before the next."""
    if isinstance(info, ir.ShapeInfo) and info.rank >= 0:
        end = position + info.rank
        return {"tuple": list(range(position, end))}, end
    if not isinstance(info, ir.TupleInfo):
        return position, position + 1
    items: list[Any] = []
    for field in info.fields:
        tree, position = _input_tree(field, position)
        items.append(tree)
    return {"tuple": items}, position


def _memory(
    name: str,
    plans: Mapping[str, ArenaPlan],
    outputs: Sequence[ir.Buffer],
    lowered: ir.IRModule,
    compiled: ir.IRModule,
) -> dict[str, Any]:
    plan = plans[name]
    memory = call_memory(name, outputs, plans, lowered, compiled)
    weights = sum(int(a.nbytes) for a in lowered.attrs.get("constants", {}).values())
    return {
        "packed_weight_bytes": weights,
        "arena": size_text(plan.whole),
        "unshared": size_text(plan.unshared),
        "peak": size_text(memory.peak),
        "task": size_text(memory.task),
        "upper_bound": memory.upper_bound,
        "values": [_planned(value) for value in plan.values],
        "largest": {s.name: _text(plan.sizes.largest(s)) for s in plan.sizes.levels},
    }


def _text(size: ir.Expr | None) -> int | str | None:
    return None if size is None else size_text(size)


def _planned(value: PlannedValue) -> tuple[Any, ...]:
    """A row of the memory plan; see `runtime.memory_plan.PlacedValue`."""
    place = value.place
    inside = "" if place.result is None else place.result.name
    sizes = size_text(value.size), size_text(place.offset)
    return (value.name, *sizes, inside, value.first, value.last, value.result)
