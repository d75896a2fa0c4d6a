"""Control flow: If, Loop and Scan.

A condition that is known at import chooses its branch. Loops of a few iterations are written out;
others are loops of the program (see `frontend.loops`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import (
    Call,
    Converters,
    NeedsBranches,
    Value,
    axis_of,
    dims_of,
    dtype_of,
    rank_of,
)
from blockwright.frontend.onnx.run_time_sizes import computed, loaded
from blockwright.frontend.onnx.sizes import I64, array_of, expr, packed
from blockwright.graph import GraphBuilder, symbol_ranges
from blockwright.support import ImporterError

TABLE = Converters()
_WRITTEN_OUT = 64  # iterations of a loop that is written out
_LONGEST = 1024  # those of a loop that only its condition ends


def _depends(call: Call) -> frozenset[str]:
    empty: frozenset[str] = frozenset()
    return empty.union(*(call.imp.scope.depends(n) for n in call.node.input if n))


@TABLE.op("If")
def _if(call: Call) -> Value:
    condition = array_of(call.value(0))
    if condition is not None:
        name = "then_branch" if condition.reshape(()) else "else_branch"
        return call.imp.subgraph(call.attr(name), [], _depends(call))
    bodies = [call.attr("then_branch"), call.attr("else_branch")]

    def refused(reason: str) -> ImporterError:
        error, sources = call.unknown(0, "the condition"), call.imp.sources(call.node.input[0])
        return ImporterError(
            f"the branches give {reason}; which of them runs is known only when the model runs",
            code="BW523",
            help=error.help
            if sources
            else "if the size of an axis decides it, as for torch.squeeze of a dynamic axis, give "
            "the axis a number in the export or in the model (dim_value); or make it a constant",
        )

    return _branches(call, call.reshape(call.tensor(0), ()), bodies, _depends(call), refused)


def _branches(
    call: Call,
    condition: ir.GraphExpr,
    bodies: Sequence[Any],
    depends: frozenset[str],
    refused: Callable[[str], ImporterError],
) -> Any:
    """The values of one of two graphs, chosen when the model runs.

    Args:
        refused: the error, given the reason, if their results differ in type or rank.
    """
    imp = call.imp
    if imp.builder.dataflow:
        raise NeedsBranches
    parts: list[ir.SeqExpr] = []
    values: list[tuple[ir.GraphExpr, ...]] = []
    own: list[GraphBuilder] = []
    for graph in bodies:
        with imp.inside(imp.builder.branch()):
            made = tuple(map(imp.tensor, imp.subgraph(graph, [], depends)))
            parts.append(imp.builder.sequence(ir.TupleExpr(made)))
            values.append(made)
            own.append(imp.builder)
    then, other = parts
    for one, two in zip(*values, strict=True):
        a, b = one.tensor_info, two.tensor_info
        if a.dtype is not b.dtype or a.rank != b.rank:
            what = "types" if a.dtype is not b.dtype else "ranks"
            raise refused(f"results of different {what}, {a!r} and {b!r}")

    infos = tuple(
        a.info
        if ir.structural_equal(a.info, b.info)
        else ir.TensorInfo(None, a.tensor_info.dtype, a.tensor_info.rank)
        for a, b in zip(*values, strict=True)
    )
    chosen = imp.builder.emit(ir.If(condition, then, other, info=ir.TupleInfo(infos)), "chosen")
    fields = [
        imp.builder.emit(ir.TupleGetItem(chosen, k, info=field)) for k, field in enumerate(infos)
    ]
    pairs = zip(fields, *values, strict=True)
    return [_sized(call, field, dims_of(a), dims_of(b), own) for field, a, b in pairs]


def _sized(
    call: Call,
    value: ir.GraphVar,
    then: Sequence[ir.Expr],
    other: Sequence[ir.Expr],
    own: Sequence[GraphBuilder],
) -> ir.GraphExpr:
    """A result of branches, with symbols for sizes that depend on which of them ran."""
    if value.tensor_info.shape is not None:
        return value
    imp = call.imp
    builder, shape = imp.builder, list[ir.Expr]()
    for a, b in zip(then, other, strict=True):
        inside = any(branch.binds(a) for branch in own)
        if builder.analyzer.prove_equal(a, b) and not inside:
            shape.append(a)
            continue
        symbol = ir.Var(imp.dimensions.unique("size"), ir.dtype_of("int64"))
        builder.analyzer.bind(symbol, symbol_ranges(builder.attrs, [symbol])[symbol])
        shape.append(symbol)
    return builder.match_cast(value, ir.TensorInfo(tuple(shape), value.tensor_info.dtype), "sized")


@TABLE.op("Loop")
def _loop(call: Call) -> Value:
    """A few iterations of a known number are written out; others are a loop of the program."""
    count = array_of(call.value(0)) if call.has(0) else None
    start = array_of(call.value(1)) if call.has(1) else np.asarray(True)
    most = _WRITTEN_OUT if call.has(0) else _LONGEST
    number = None if count is None else int(count.reshape(()))
    if start is not None and (not call.has(0) or (number is not None and number <= most)):
        written = _written_out(call, most if number is None else number, bool(start.reshape(())))
        if written is not None:
            return written
    rows = len(call.attr("body").output) - 1 - len(call.operands[2:])
    return _over_numbers(call) if rows else _repeated(call)[2:]


def _written_out(call: Call, count: int, condition: bool) -> list[Value] | None:
    """The body for each iteration; None if the condition is known only when the model runs."""
    body = call.attr("body")
    carried = list(call.operands[2:])
    scans: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while condition and step < count:
        given = [np.asarray(step, np.int64), np.asarray(True), *carried]
        again, *values = call.imp.subgraph(body, given, _depends(call))
        known = array_of(again)
        if known is None:
            return None
        condition = bool(known.reshape(()))
        carried, parts = values[: len(carried)], values[len(carried) :]
        for kept, part in zip(scans, parts, strict=True):
            kept.append(part)
        step += 1
    if condition and not call.has(0):
        return None
    if not step and scans:
        raise call.error("a loop that never runs has scan outputs", "remove it", "BW526")
    return [*carried, *(_stacked(call, parts, 0) for parts in scans)]


def _repeated(call: Call) -> list[Any]:
    """A loop without scan outputs: its number of iterations, its condition, what it carries."""
    imp, body, depends = call.imp, call.attr("body"), _depends(call)
    most = call.reshape(call.tensor(0), ()) if call.has(0) else None
    start = call.reshape(call.tensor(1), ()) if call.has(1) else imp.tensor(np.asarray(True))
    count, outer = len(call.operands[2:]), imp.builder

    def holds(state: list[Any]) -> ir.GraphExpr:
        if most is None:
            return state[1]
        return call.apply("logical_and", state[1], call.apply("less", state[0], most))

    def step(state: list[Any]) -> list[Any]:
        again, *new = (imp.tensor(v) for v in imp.subgraph(body, state, depends))
        new = _of_kept_sizes(call, outer, new[:count], state[2:], body.output[1:])
        number = call.apply("add", state[0], imp.tensor(np.asarray(1, np.int64)))
        return [number, call.reshape(again, ()), *new]

    if imp.builder.dataflow:
        raise NeedsBranches
    state = [imp.tensor(np.asarray(0, np.int64)), start, *map(imp.tensor, call.operands[2:])]
    return imp.loops.repeat(imp.builder, imp.inside, holds, step, state)


class _NotKnown(Exception):
    """The condition of a body is known only when the model runs."""


def _over_numbers(call: Call) -> list[Value]:
    """A loop with scan outputs, whose sizes are the number of iterations.

    If the body has a condition that depends on data, a loop without scan outputs counts the
    iterations first.
    """
    start = array_of(call.value(1)) if call.has(1) else np.asarray(True)
    try:
        if not call.has(0):
            raise _NotKnown
        end = _number(call)
        if start is None:
            end = _none_unless(call, call.tensor(1), end)
        return _scanned(call, end, checks=True)
    except _NotKnown:
        return _scanned(call, _loaded_number(call, _repeated(call)[0]), checks=False)


def _scanned(call: Call, end: Any, checks: bool) -> list[Value]:
    """The body for each number below `end`.

    Raises: _NotKnown if it `checks` the condition, and this is not known to hold on.
    """
    imp, body, depends = call.imp, call.attr("body"), _depends(call)

    def step(state: list[Any], elements: list[Any]) -> tuple[list[Any], list[Any]]:
        again, *values = imp.subgraph(body, [elements[0], np.asarray(True), *state], depends)
        known = array_of(again)
        if checks and (known is None or not known.reshape(())):
            raise _NotKnown
        outputs = body.output[1 + len(state) :]
        rows = [
            _as_declared(call, v, o) for v, o in zip(values[len(state) :], outputs, strict=True)
        ]
        return _of_kept_sizes(call, outer, values[: len(state)], state, body.output[1:]), rows

    outer = imp.builder
    numbers = call.apply("arange", begin=0, end=end, step=1, dtype="int64")
    carried = list(call.operands[2:])
    return imp.loops.over(imp.builder, imp.inside, step, carried, [numbers], tensor=imp.tensor)


def _of_kept_sizes(
    call: Call, outer: GraphBuilder, new: list[Any], old: Sequence[Any], outputs: Sequence[Any]
) -> list[Any]:
    """Values that a loop carries on, which calls check to keep their sizes.

    In a loop that is written out, whose iterations the builder around it emits, sizes may change.

    Raises: ImporterError BW526 if they do in other loops.
    """
    builder = call.imp.builder
    if builder is outer:
        return new

    def kept(value: Any, before: Any, name: str) -> Any:
        tensor, wanted = call.imp.tensor(value), call.imp.tensor(before).tensor_info
        info = tensor.tensor_info
        if wanted.shape is None or info.dtype is not wanted.dtype or info.rank != wanted.rank:
            return tensor  # the loop refuses it
        pairs = list(zip(dims_of(tensor), wanted.shape, strict=True))
        if all(ir.structural_equal(a, b) for a, b in pairs):
            return tensor
        if any(builder.analyzer.prove(ir.compare(ir.NE, a, b)) for a, b in pairs):
            raise call.error(
                f"the carried value {name} changes its size, from {wanted!r} to {info!r}",
                f"fix the number of iterations, to at most {_WRITTEN_OUT} for a Loop, or make the "
                "value a scan output of the body, which is stacked",
                "BW526",
            )
        message = (
            f"BW708: {call.op} {call.name}: the carried value {name} changes its size\n"
            "help: pass inputs of other sizes"
        )
        return builder.match_cast(tensor, wanted, "carried", message.replace("%", "%%"))

    names = [output.name for output in outputs][: len(new)]
    return [kept(*each) for each in zip(new, old, names, strict=True)]


def _as_declared(call: Call, value: Value, output: Any) -> ir.GraphExpr:
    """A scan output whose sizes depend on data, cast to those that the model declares.

    Raises: ImporterError BW526 if it declares none.
    """
    builder, tensor = call.imp.builder, call.imp.tensor(value)
    dims, declared = list(dims_of(tensor)), output.type.tensor_type.shape.dim
    for axis, dim in enumerate(dims):
        if not builder.binds(dim):
            continue
        size = declared[axis].dim_value if axis < len(declared) else 0
        if not size:
            raise call.error(
                f"dimension {axis} of the scan output {output.name} depends on data",
                "declare its size in the body",
                "BW526",
            )
        dims[axis] = ir.const(size, I64)
    if all(a is b for a, b in zip(dims, dims_of(tensor), strict=True)):
        return tensor
    message = f"BW708: the scan output {output.name} has not the declared sizes"
    return builder.match_cast(tensor, ir.TensorInfo(tuple(dims), dtype_of(tensor)), "row", message)


def _none_unless(call: Call, condition: ir.GraphExpr, count: Any) -> Any:
    """The number of iterations if the condition holds at the start, else 0."""
    whole = call.imp.tensor(packed(np.array([expr(count)], dtype=object), I64))
    zero = call.scalar(0, I64)
    return loaded(call, call.apply("where", call.reshape(condition, (1,)), whole, zero))[0]


def _number(call: Call) -> Any:
    """The number of iterations: an integer, an expression of sizes, or a symbol."""
    sizes = computed(call, 0) if rank_of(call.tensor(0)) else None
    if sizes is None and not isinstance(call.value(0), ir.GraphExpr):
        return call.sizes(0, "the number of iterations")[0]
    return _loaded_number(call, call.tensor(0))


def _loaded_number(call: Call, number: ir.GraphExpr) -> ir.Var:
    most = call.cast(call.reshape(number, (1,)), "int64")
    return loaded(call, call.apply("maximum", most, scalar=0, scalar_side="right"))[0]


def _stacked(call: Call, parts: list[Value], axis: int) -> ir.GraphExpr:
    """The parts along a new axis."""
    tensors: list[ir.GraphExpr] = []
    for part in parts:
        tensor = call.imp.tensor(part)
        dims: list[Any] = list(dims_of(tensor))
        dims.insert(axis, 1)
        tensors.append(call.reshape(tensor, dims))
    return tensors[0] if len(tensors) == 1 else call.apply("concat", *tensors, axis=axis)


@TABLE.op("Scan")
def _scan(call: Call) -> Value:
    """A body for each slice of the scanned operands."""
    imp, body, depends = call.imp, call.attr("body"), _depends(call)
    inputs = call.attr("num_scan_inputs")
    carried = list(call.operands[: len(call.operands) - inputs])
    scanned = call.tensors()[len(carried) :]
    outputs = len(body.output) - len(carried)
    axes_in = call.attr("scan_input_axes", (0,) * inputs)
    axes_out = call.attr("scan_output_axes", (0,) * outputs)
    backward_in = call.attr("scan_input_directions", (0,) * inputs)
    backward_out = call.attr("scan_output_directions", (0,) * outputs)
    over: list[ir.GraphExpr] = []
    for x, axis, backward in zip(scanned, axes_in, backward_in, strict=True):
        first = _moved(call, x, axis_of(axis, rank_of(x)), 0)
        over.append(call.apply("flip", first, axis=(0,)) if backward else first)

    def step(state: list[Any], elements: list[Any]) -> tuple[list[Any], list[Any]]:
        values = imp.subgraph(body, [*state, *elements], depends)
        new = _of_kept_sizes(call, outer, values[: len(state)], state, body.output)
        return new, values[len(state) :]

    outer = imp.builder
    results = imp.loops.over(imp.builder, imp.inside, step, carried, over, tensor=imp.tensor)
    rows: list[Value] = []
    for y, axis, backward in zip(results[len(carried) :], axes_out, backward_out, strict=True):
        ordered = call.apply("flip", y, axis=(0,)) if backward else y
        rows.append(_moved(call, ordered, 0, axis_of(axis, rank_of(y))))
    return [*results[: len(carried)], *rows]


def _moved(call: Call, x: ir.GraphExpr, source: int, target: int) -> ir.GraphExpr:
    """A tensor with an axis at another position."""
    if source == target:
        return x
    order = [k for k in range(rank_of(x)) if k != source]
    order.insert(target, source)
    return call.apply("permute_dims", x, axes=tuple(order))
