"""Import of `torch.export.ExportedProgram`s.

    mod = from_exported_program(ep)     # IRModule with the graph function "main"

The program is imported as exported, before decomposition, so that attention, linear, layer
normalization and GELU stay whole. Operators without a row are composed of rows by `converters`;
PyTorch decomposes those that have no converter either (`decompose`). Model parameters become named
constants; user inputs, in order, become function parameters. All uncovered operators are reported
at once, with their source lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.fallback import FALLBACKS, Fallback
from blockwright.frontend.loops import Loops
from blockwright.frontend.torch import convert_complex
from blockwright.frontend.torch.converters import CONVERTERS, IGNORED
from blockwright.frontend.torch.decompose import no_node, with_known_operators
from blockwright.frontend.torch.framework_calls import (
    as_pairs,
    called_operator,
    can_call,
    complex_part,
    framework_call,
    is_complex,
    refuse_quantized,
    refuse_transformed,
    touches_complex,
)
from blockwright.frontend.torch.guards import (
    Decisions,
    checked_guards,
    common_factors,
    decision_error,
)
from blockwright.frontend.torch.input_updates import InputUpdates
from blockwright.frontend.torch.memory_format import counted, memory_order
from blockwright.frontend.torch.mutation import functional, weights
from blockwright.frontend.torch.names import origin, target_name
from blockwright.frontend.torch.operands import as_tensor, torch_dtype
from blockwright.frontend.torch.random_state import RandomState
from blockwright.frontend.torch.regions import all_nodes, attribute, is_graph
from blockwright.frontend.torch.run_time_sizes import ASSERTIONS, RunTimeSizes
from blockwright.frontend.torch.state import StateTable, updates, user_outputs
from blockwright.frontend.torch.symbols import SymbolTable, dynamic_names
from blockwright.frontend.torch.trees import Constant, input_tree, output_tree
from blockwright.graph import GraphBuilder, constant
from blockwright.ir.attributes import STATE
from blockwright.runtime.refused import require_data
from blockwright.support import BlockwrightError, ImporterError

COMPLEX = convert_complex.TABLE.overloads
"""Converters of overloads that take or return complex tensors."""
KNOWN = frozenset(CONVERTERS) | IGNORED | ASSERTIONS
"""Overloads that are imported directly; others are decomposed."""
BRANCHES = frozenset({"aten.cond", "aten.while_loop"})
"""Operators that become branches, which a dataflow block cannot hold."""


def to_numpy(tensor: Any, path: str) -> np.ndarray[Any, Any]:
    """The model parameter at `path` as a contiguous array; types that NumPy lacks keep their bits.

    Raises: ImporterError BW504 for an element type without a counterpart.
    """
    import torch

    require_data(tensor, f"the model's {path!r}")
    try:
        stored = torch_dtype(tensor.dtype).numpy()
    except ImporterError as error:
        raise ImporterError(
            f"the model's {path!r}: {error.message}", code=error.code, help=error.help
        ) from error
    value = tensor.detach().cpu().resolve_neg().contiguous()
    if stored.isbuiltin == 1:
        return value.numpy()
    bits = {1: torch.uint8, 2: torch.int16}[stored.itemsize]  # bfloat16 and the 8-bit floats
    return value.view(bits).numpy().view(stored)


class _NeedsFramework(Exception):
    """The framework has to compute a node that converters cover, but not with its arguments."""


class Importer:
    """State of one import: symbols, graph builder, values of graph nodes so far."""

    def __init__(
        self, program: Any, dynamic_shapes: Any = None, fallback: Fallback = "framework"
    ) -> None:
        self.call = program.call_spec, program.module_call_graph
        self.exported = program
        self.falls_back = fallback == "framework"
        refuse_quantized(program)
        refuse_transformed(program)
        decisions = Decisions(program)
        self.program = program = with_known_operators(
            functional(program), is_known, can_call if self.falls_back else no_node
        )
        self.decisions = decisions.made()
        nodes = list(all_nodes(program.graph_module))
        self.uses_framework = any(map(self._is_left, nodes))
        self.has_branches = any(target_name(node.target) in BRANCHES for node in nodes)
        self.changes = updates(program)
        self.weights = weights(program)
        self.paths = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
        self.dynamic_names = dynamic_names(program, dynamic_shapes)
        self._begin({})

    def _begin(self, factors: Mapping[str, int]) -> None:
        """Reset the import; `factors` are the known divisors of the exporter's symbols."""
        ranges = self.program.range_constraints
        self.factors = factors
        self.symbols = SymbolTable(ranges, self.dynamic_names, factors)
        self.values: dict[str, Any] = {}
        self.module = self.program.graph_module
        self.loops = Loops()
        plain = self.uses_framework or self.has_branches
        self.builder = GraphBuilder(self.bounds(), dataflow=not plain, unequal="checked")
        self.input_names: list[str] = []
        self.input_orders: dict[str, tuple[int, ...]] = {}
        self.input_pairs: list[str] = []
        self.input_leaves: list[int | Constant] = []
        self.state_params: dict[str, str] = {}
        self.updates = InputUpdates(self.builder)
        self.sizes = RunTimeSizes(self)
        self.fallbacks: dict[str, list[str]] = {}
        self.random = RandomState(self.builder, self.updates)

    def bounds(self) -> dict[str, Any]:
        """Ranges of all symbols in input sizes; needed before the first parameter is created."""
        sizes = [
            size for node in self._inputs() for size in getattr(node.meta.get("val"), "shape", ())
        ]
        for size in sizes:
            self.symbols.dim(size)
        return self.symbols.bounds(sizes)

    def run(self, table: StateTable) -> ir.IRModule:
        """Import the program, whose buffers in `table` are state; raises ImporterError listing
        every problem.

        Shapes that do not match for all sizes may match for those that the guards allow. The import
        is then repeated with each size written as a multiple of its common factor.
        """
        self._find_state(table)
        try:
            return self._imported()
        except ImporterError as error:
            factors = self._common_factors() if error.code == "BW401" else {}
            if not factors:
                raise
        self._begin(factors)
        return self._imported()

    def _imported(self) -> ir.IRModule:
        """Import the program; again if a converter refuses arguments and the framework may not be
        called yet: such calls need plain blocks."""
        try:
            return self._import()
        except _NeedsFramework:
            self.uses_framework = True
            self._begin(self.factors)
            return self._import()

    def _common_factors(self) -> dict[str, int]:
        """Exporter symbol → a factor of all sizes that satisfy the guards."""
        example: dict[ir.Var, int] = {}
        for node in self._inputs():
            for size in getattr(node.meta.get("val"), "shape", ()):
                dim, hint = self.symbols.dim(size), getattr(getattr(size, "node", None), "hint", 0)
                if isinstance(dim, ir.Var) and isinstance(hint, int):
                    example[dim] = hint
        names = self.symbols.names()
        result = common_factors(self.exported, self._input_shapes(), example)
        return {names[symbol]: factor for symbol, factor in result.items()}

    def _inputs(self) -> list[Any]:
        return [node for node in self.program.graph.nodes if node.op == "placeholder"]

    def _input_shapes(self) -> dict[str, tuple[ir.Expr, ...]]:
        """The dimensions of each input, by placeholder name."""
        shapes: dict[str, tuple[ir.Expr, ...]] = {}
        for node in self._inputs():
            shape = getattr(node.meta.get("val"), "shape", ())
            shapes[node.name] = tuple(self.symbols.dim(size) for size in shape)
        return shapes

    def _import(self) -> ir.IRModule:
        for node in sorted(self._inputs(), key=lambda node: node.name in self.state):
            self.values[node.name] = self._placeholder(node)  # state is last
        self._check_sizes()
        return self._finish(self._compute(self.program.graph_module))

    def _compute(self, module: Any) -> Any:
        """Import the nodes of a graph whose inputs have values; returns its output node."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.values[node.name] = self._call(node)
            elif node.op == "get_attr":
                self.values[node.name] = self._attribute(node)
            elif node.op == "output":
                return node
        raise ImporterError("the exported program has no output", code="BW505")

    # ---------------------------------------------------------------------------- control flow

    def region(self, module: Any, operands: Sequence[Any]) -> list[Any]:
        """Import the body of a control-flow operator, with values of its inputs; return its
        outputs."""
        outer = self.values, self.module
        inputs = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        self.values, self.module = dict(zip(inputs, operands, strict=True)), module
        try:
            return [self.operand(value) for value in _flat(self._compute(module).args[0])]
        finally:
            self.values, self.module = outer

    def add_state(self, table: StateTable, model: str) -> None:
        """Add the buffers that the program changes to a table."""
        for _, changed in self.changes:
            if changed in self.weights:
                table.add(self.paths[changed], self.weights[changed], model)

    def _find_state(self, table: StateTable) -> None:
        """Find the placeholders that are state, and that the program uses."""
        changed = {update.input for update in self.changes}
        self.state: dict[str, str] = {}
        for node in self._inputs():
            if node.name in self.weights and (node.users or node.name in changed):
                name = table.name_of(self.paths[node.name], self.weights[node.name])
                if name is not None:
                    self.state[node.name] = name

    def _placeholder(self, node: Any) -> Any:
        if node.name in self.state:
            param = self.builder.param(node.name, self.info_of(node.meta["val"]))
            self.updates.parameter(node.name, param, ())
            self.state_params[param.name] = self.state[node.name]
            return param
        if node.name in self.weights:
            path = self.paths[node.name]
            held = self.weights[node.name]
            return constant(to_numpy(as_pairs(held), path), path)
        value = node.meta.get("val")
        if isinstance(value, (int, float, bool, str)) or value is None:
            self.input_leaves.append(Constant(repr(value)))
            return value
        if not hasattr(value, "shape"):
            raise ImporterError(
                f"the input {node.name} is {type(value).__name__}, not a tensor",
                code="BW504",
                help="pass a tensor, or a number that the export treats as a constant",
            )
        try:
            changed = any(update.input == node.name for update in self.changes)
            pairs = convert_complex.input_info(self, value, changed)
            info = pairs or self.info_of(value)
        except ImporterError as error:
            raise ImporterError(
                f"the input {node.name}: {error.message}", code=error.code, help=error.help
            ) from error
        self.input_leaves.append(len(self.input_names))
        self.input_names.append(node.name)
        if pairs:
            param = self.builder.param(node.name, pairs)
            self.input_pairs.append(param.name)
            return param
        order = memory_order(value)
        if not order:
            param = self.builder.param(node.name, info)
            self.updates.parameter(node.name, param, order)
            return param
        assert info.shape is not None
        stored = self.builder.param(
            node.name, info.replace(shape=tuple(info.shape[axis] for axis in order))
        )
        self.input_orders[stored.name] = order
        self.updates.parameter(node.name, stored, order)
        return self.builder.op("permute_dims", stored, axes=counted(order))

    def _check_sizes(self) -> None:
        """Check the export's guards on sizes at every call, by a `match_cast` of their truth."""
        for guard in checked_guards(self.exported, self._input_shapes(), self.builder.analyzer):
            message, values = guard.error()
            for condition in guard.conditions:
                self.builder.require(condition, message, values)

    def _check_decisions(self) -> None:
        """Check what PyTorch's decompositions assume about sizes, where all of these are known."""
        analyzer = self.builder.analyzer
        for decision in self.decisions:
            condition = analyzer.simplify(self.symbols.condition(decision))
            if not analyzer.prove(condition):
                named = {v.name: v for v in ir.free_vars(condition)}
                text = self.symbols.readable(decision)
                self.builder.require(condition, *decision_error(text, named))

    def info_of(self, value: Any) -> ir.TensorInfo:
        """Tensor annotation of a fake tensor."""
        shape = tuple(self.symbols.dim(s) for s in value.shape)
        return ir.TensorInfo(shape, torch_dtype(value.dtype), len(shape))

    def _attribute(self, node: Any) -> Any:
        value = attribute(self.module, node)
        if is_graph(value):
            return value
        return constant(to_numpy(as_pairs(value), str(node.target)), str(node.target))

    def _call(self, node: Any) -> Any:
        name = target_name(node.target)
        if name in ASSERTIONS:
            self.sizes.check(node)
        if name in IGNORED or name in ASSERTIONS:
            return None
        try:
            if self._is_left(node):
                return self._framework_call(node)
            args = [self.operand(a) for a in node.args]
            kwargs = {k: self.operand(v) for k, v in node.kwargs.items()}
            table = COMPLEX if touches_complex(node) else CONVERTERS
            if name not in table:
                raise convert_complex.unsupported()
            value = table[name](self, node, *args, **kwargs)
            return self.sizes.cast(node.meta.get("val"), value)
        except BlockwrightError as error:
            if error.code == "BW507" and self.falls_back and can_call(node):
                if not self.uses_framework:
                    raise _NeedsFramework from error
                return self._framework_call(node)
            raise ImporterError(
                f"{name}: {error.message}", code=error.code, help=error.help, notes=(origin(node),)
            ) from error

    def _is_left(self, node: Any) -> bool:
        """Whether the framework computes a node."""
        return self.falls_back and node.op == "call_function" and not is_known(node)

    def _framework_call(self, node: Any) -> Any:
        """The value of a node that the framework computes."""
        if name := called_operator(node):
            self.fallbacks.setdefault(name, []).append(origin(node))
        return framework_call(self, node)

    def operand(self, value: Any) -> Any:
        """Convert an fx argument: graph nodes to their values, containers recursively."""
        if type(value).__name__ == "Node":
            return self.values[value.name]
        if isinstance(value, (list, tuple)):
            return [self.operand(v) for v in cast("list[Any] | tuple[Any, ...]", value)]
        if type(value).__name__ == "dtype" and not value.is_complex:
            return torch_dtype(value)
        return value

    def _finish(self, node: Any) -> ir.IRModule:
        self._check_decisions()
        nodes = _flat(node.args[0])
        for value in {v.name: v for v in nodes if type(v).__name__ == "Node"}:
            kept = self.values[value]
            if isinstance(kept, ir.GraphExpr):
                self.values[value] = self.updates.keep(kept, (u.input for u in self.changes))
        for name, placeholder in self.changes:
            self.values[name] = self.updates.write(placeholder, self.values[name])
        self.random.advance()
        nodes = user_outputs(self.program)
        results = [self._result(v) for v in nodes]
        kept = [as_tensor(r) for r in results if r is not None]
        for result in kept:
            if not isinstance(result, ir.GraphExpr):
                raise ImporterError("an output of the model is not a tensor", code="BW506")
        named = zip(nodes, results, strict=True)
        stated = [v.meta["val"] for v, r in named if r is not None]
        pairs = [k for k, value in enumerate(stated) if is_complex(value)]
        orders = [() if is_complex(value) else memory_order(value) for value in stated]
        kept = [
            self.updates.stored.get(r) or self.builder.op("permute_dims", r, axes=order)
            if order
            else r
            for r, order in zip(kept, orders, strict=True)
        ]
        single = len(kept) == 1
        if state := self.state_params | self.random.params:
            self.builder.attrs[STATE] = state
        function = self.builder.finish("main", kept[0] if single else ir.TupleExpr(tuple(kept)))
        tree = self._output_tree(results)
        attrs: dict[str, Any] = {"outputs_tree": tree, "framework": "torch"}
        spec, graph = self.call
        signature = graph[0].signature if graph else None
        inputs = input_tree(spec.in_spec, signature, self.input_leaves)
        if inputs is not None:
            attrs["inputs_tree"] = inputs
        if self.input_orders:
            attrs["input_orders"] = self.input_orders
        if any(orders):
            attrs["output_orders"] = orders
        if self.input_pairs:
            attrs["input_pairs"] = self.input_pairs
        if pairs:
            attrs["output_pairs"] = pairs
        if self.state:
            tensors = {name: self.weights[node] for node, name in self.state.items()}
            attrs[STATE] = {name: to_numpy(tensor, name) for name, tensor in tensors.items()}
        if self.uses_framework:
            function = function.replace(pure=False)
            attrs[FALLBACKS] = {n: tuple(lines) for n, lines in self.fallbacks.items()}
        functions: dict[str, ir.Node] = {"main": function, **self.loops.functions}
        functions |= self.updates.programs
        return ir.IRModule(functions, attrs)

    def _result(self, value: Any) -> Any:
        """The value of an output; a number known at export has no node."""
        if value is None:
            return None
        if type(value).__name__ != "Node":
            raise ImporterError(
                f"an output of the model is {value!r}, not a tensor",
                code="BW506",
                help="return only tensors; constants are known without a call",
            )
        if complex_part(value.meta.get("val")) == "float16":
            raise ImporterError(
                "an output of the model is a complex tensor of half precision",
                code="BW504",
                help="return torch.view_as_real(output)",
            )
        result = self.values[value.name]
        if isinstance(result, ir.Expr):
            kind = "condition on sizes" if result.dtype.is_bool else "number computed from sizes"
            raise ImporterError(
                f"an output of the model is a {kind}, not a tensor",
                code="BW506",
                help="return tensors alone, such as torch.full((), x.shape[0]) > 5",
            )
        return result

    def _output_tree(self, results: list[Any]) -> Any:
        """The model's output structure with result numbers as leaves (see `runtime.executable`)."""
        numbers = iter(range(len(results)))
        leaves = [next(numbers) if r is not None else None for r in results]
        if self.exported.graph_signature.backward_signature is not None:
            return {"tuple": leaves}  # of a joint graph: the loss, then the gradients
        return output_tree(self.program.call_spec.out_spec, leaves)


def is_known(node: Any) -> bool:
    """Whether a converter covers the operator that a node calls, for operands of its type."""
    name = target_name(node.target)
    return name in KNOWN if name in IGNORED or not touches_complex(node) else name in COMPLEX


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        items = cast("list[Any] | tuple[Any, ...]", value)
        return [leaf for item in items for leaf in _flat(item)]
    return [value]


def from_exported_program(
    program: Any, dynamic_shapes: Any = None, fallback: Fallback = "framework"
) -> ir.IRModule:
    """Import an exported program.

    Args:
        program: a `torch.export.ExportedProgram`.
        dynamic_shapes: the argument of the export; names of its dimensions appear in messages.
        fallback: "framework": operators that the importer does not cover become calls of PyTorch;
            "error": they are an error.

    Raises:
        ImporterError: BW501 lists all uncovered operators; BW503–BW506 name the unsupported part.
    """
    return from_exported_programs({"main": (program, dynamic_shapes)}, fallback)["main"]


def from_exported_programs(
    programs: Mapping[str, tuple[Any, Any]], fallback: Fallback = "framework"
) -> dict[str, ir.IRModule]:
    """Import exported programs, each with its dynamic shapes, which share the buffers that one of
    them changes; see `from_exported_program`."""
    importers = {name: Importer(*given, fallback) for name, given in programs.items()}
    table = StateTable()
    for name, importer in importers.items():
        importer.add_state(table, name)
    return {name: importer.run(table) for name, importer in importers.items()}
