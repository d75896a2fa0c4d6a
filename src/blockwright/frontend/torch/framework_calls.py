"""Operators that the compiled model leaves to PyTorch: calls of the framework in the graph.

    values, places = torch.mode(x)

becomes, for a model in which no converter covers `aten.mode`,

    mode = R.call_dps_library("torch.ops.aten.mode.default", (x,), call='{"inputs":1,…}',
                              out_sinfo=[R.Tensor((n,), "float32"), R.Tensor((n,), "int64")])

Types and sizes of results are the exporter's. Complex tensors are stored as pairs of real numbers,
with one axis more; what computes with them is left to PyTorch too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blockwright import ir
from blockwright.frontend.fallback import framework_results
from blockwright.frontend.torch.names import is_overload, origin, target_name
from blockwright.frontend.torch.operands import torch_dtype
from blockwright.frontend.torch.regions import all_nodes
from blockwright.frontend.torch.run_time_sizes import depends_on_data
from blockwright.frontend.torch.writes import written_undeclared
from blockwright.graph import constant
from blockwright.runtime.frameworks.call import OperatorCall
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

_SAME = frozenset({"aten.view_as_real.default", "aten.view_as_complex.default"})
"""Operators that do not change how their operand is stored."""

_READ_STRIDES = frozenset(
    f"aten.{name}"
    for name in (
        *("as_strided", "as_strided_copy", "as_strided_scatter", "resize", "resize_as", "set"),
        *("_reshape_alias", "_reshape_alias_copy", "stride", "storage_offset"),
    )
)
"""Operators whose result depends on how the operand lies in memory, which compiled code decides."""

_QUANTIZED = frozenset({"quint8", "qint8", "qint32", "quint4x2", "quint2x4"})

_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def can_call(node: Any) -> bool:
    """Whether the framework can run the operator of a node on tensors of compiled code.

    It cannot if the operator writes arguments without declaring it: they may be constants.
    """
    operator = _operator(node)
    if written_undeclared(node):
        return False
    if operator is None or target_name(operator).rpartition(".")[0] in _READ_STRIDES:
        return False
    given = list(_leaves((node.args[1:] if _is_functional(node) else node.args, node.kwargs)))
    held = [v.meta.get("val") if type(v).__name__ == "Node" else v for v in given]
    results = list(_leaves(node.meta.get("val")))
    return all(map(_is_argument, held)) and all(map(_is_value, results))


def refuse_quantized(program: Any) -> None:
    """Raise ImporterError BW504 if a program makes a tensor of a quantized type.

    The exporter takes it for one of float numbers.
    """
    for node in all_nodes(program.graph_module):
        given = _leaves((node.args, node.kwargs)) if node.op == "call_function" else ()
        names = [str(value).removeprefix("torch.") for value in given]
        found = [name for name in names if name in _QUANTIZED]
        if found:
            raise ImporterError(
                f"a tensor of PyTorch's quantized type {found[0]}",
                code="BW504",
                help="round with torch.fake_quantize_per_tensor_affine, or compute with integers",
                notes=(origin(node),),
            )


def refuse_transformed(program: Any) -> None:
    """Raise ImporterError BW509 if the exporter made constants of tensors of `torch.func.grad`.

    It takes what a transformed function reads of the example inputs for constants.
    """
    import torch

    functions: Any = cast("Any", torch)._C._functorch
    if any(map(functions.is_functorch_wrapped_tensor, _tensors(program.constants.values()))):
        raise ImporterError(
            "PyTorch could not export a transformation of a function, such as torch.func.grad",
            code="BW509",
            help="call it outside of the compiled model; torch.func.vmap and jvp are exported",
        )


def _tensors(values: Iterable[Any]) -> list[Any]:
    import torch

    return [value for value in values if isinstance(value, torch.Tensor)]


def touches_complex(node: Any) -> bool:
    """Whether an operator takes or returns a complex tensor."""
    if node.op != "call_function" or target_name(node.target) == "operator.getitem":
        return False
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return any(map(is_complex, _leaves([*values, node.meta.get("val")])))


def is_complex(value: Any) -> bool:
    """Whether a value of the exporter is a complex tensor."""
    return complex_part(value) is not None


def as_pairs(tensor: Any) -> Any:
    """A complex tensor as one of real numbers, as it is stored; others unchanged."""
    import torch

    return torch.view_as_real(tensor.detach().resolve_conj()) if is_complex(tensor) else tensor


def framework_call(imp: Importer, node: Any) -> Any:
    """The value of a node that PyTorch computes: as `node.meta["val"]`, tensors, lists or sizes."""
    stated = node.meta.get("val")
    if target_name(node.target) in _SAME:
        return imp.operand(node.args[0])
    if target_name(node.target) == "aten.sym_size.int":
        return imp.symbols.dim(stated)  # of a complex tensor, which is stored with one axis more
    leaves = [value for value in _leaves(stated) if value is not None]
    if any(is_complex(v) and any(map(depends_on_data, v.shape)) for v in leaves):
        raise ImporterError(
            "a complex tensor of a size that is known only at run time is not supported",
            code="BW504",
            help="take its real and imaginary parts in the same operator",
        )
    results = iter(_Call(imp, node).results(leaves))
    return _nested(stated, results)


def called_operator(node: Any) -> str:
    """The operator of PyTorch that a node calls, such as `aten.mode.default`; "" for none."""
    free = target_name(node.target) in (*_SAME, "aten.sym_size.int")
    return "" if free else str(_operator(node))


def _operator(node: Any) -> Any:
    """The overload that a node calls; None if it is no operator of PyTorch."""
    target: Any = node.args[0] if _is_functional(node) else node.target
    return target if is_overload(target) else None


def _is_functional(node: Any) -> bool:
    """Whether a node calls an operator that changes arguments, on copies of them."""
    return getattr(node.target, "__name__", "") == "auto_functionalized_v2"


def complex_part(value: Any) -> str | None:
    """The type of the parts of a complex tensor; None for other values."""
    return _PARTS.get(str(getattr(value, "dtype", "")).removeprefix("torch."))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in cast("Sequence[Any]", value):
            yield from _leaves(part)
    elif isinstance(value, dict):
        yield from _leaves(list(cast("dict[str, Any]", value).values()))
    else:
        yield value


def _nested(stated: Any, results: Iterator[Any]) -> Any:
    """The results in the nesting of the exporter's value."""
    if isinstance(stated, (list, tuple)):
        return [_nested(part, results) for part in cast("Sequence[Any]", stated)]
    return None if stated is None else next(results)


def _is_value(value: Any) -> bool:
    """Whether compiled code can hold a result of the exporter's kind."""
    import torch

    if value is None or isinstance(value, (int, torch.SymInt)):
        return not isinstance(value, bool)
    return _is_tensor(value)


def _is_tensor(value: Any) -> bool:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    if value.device.type != "cpu":
        return False
    try:
        torch_dtype(torch.float32 if is_complex(value) else value.dtype)
    except ImporterError:
        return False
    return True


def _is_argument(value: Any) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return _is_tensor(value)
    if isinstance(value, torch.device):
        return value.type == "cpu"
    kinds = (bool, int, float, complex, str, torch.SymInt, torch.SymFloat, torch.SymBool)
    kinds += (torch.dtype, torch.layout, torch.memory_format)
    return value is None or isinstance(value, kinds)


class _Call:
    """One call that is being written."""

    def __init__(self, imp: Importer, node: Any) -> None:
        self.imp, self.node = imp, node
        self.operator = _operator(node)
        self.functional = _is_functional(node)
        self.inputs: list[ir.GraphExpr] = []
        self.numbers: list[ir.Expr] = []
        self.args = [self._stated(a) for a in node.args[1 if self.functional else 0 :]]
        self.named = {name: self._stated(value) for name, value in node.kwargs.items()}

    def results(self, leaves: Sequence[Any]) -> list[Any]:
        """The values of the results, whose forms the exporter states."""
        late = tuple(any(map(depends_on_data, getattr(v, "shape", ()))) for v in leaves)
        infos = [self._info(leaf) for leaf in leaves]
        shapes = [info.shape or () for info, unknown in zip(infos, late, strict=True) if unknown]
        self.imp.sizes.declare(v for shape in shapes for dim in shape for v in ir.free_vars(dim))
        call = OperatorCall(
            len(self.inputs),
            tuple(self.args),
            self.named,
            self.functional,
            late if any(late) or not leaves else None,
        )
        function = f"torch.ops.{self.operator}"
        builder, name = self.imp.builder, self.node.name
        values = framework_results(builder, name, function, self.inputs, call, self.numbers, infos)
        return [self._number(v, leaf) for v, leaf in zip(values, leaves, strict=True)]

    def _number(self, value: Any, leaf: Any) -> Any:
        """A result that is an integer of PyTorch, as the exporter's symbol."""
        if hasattr(leaf, "shape"):
            return value
        symbol = self.imp.symbols.dim(leaf)
        if isinstance(symbol, ir.Var):
            self.imp.sizes.declare([symbol])
        loaded = self.imp.builder.emit(ir.GraphCall(ir.OpRef("item"), (value,)), "loaded")
        self.imp.builder.match_cast(loaded, ir.PrimInfo(symbol.dtype, symbol), "number")
        return symbol

    def _info(self, value: Any) -> ir.TensorInfo:
        """The annotation of a result; complex tensors and integers as they are stored."""
        part = complex_part(value)
        if part is not None:
            shape = (*map(self.imp.symbols.dim, value.shape), ir.const(2, "int64"))
            return ir.TensorInfo(shape, ir.dtype_of(part), len(shape))
        if not hasattr(value, "shape"):
            return ir.TensorInfo((), ir.dtype_of("int64"), 0)
        return self.imp.info_of(value)

    def _stated(self, value: Any) -> Any:
        """An argument in its form in an `OperatorCall`."""
        import torch

        if type(value).__name__ == "Node":
            return self._operand(value)
        if isinstance(value, (list, tuple)):
            return [self._stated(part) for part in cast("Sequence[Any]", value)]
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return {type(value).__name__: str(value).removeprefix("torch.")}
        return value

    def _operand(self, node: Any) -> Any:
        value = self.imp.operand(node)
        if isinstance(value, (ir.GraphExpr, np.ndarray)):
            array = isinstance(value, np.ndarray)
            self.inputs.append(constant(cast("Any", value)) if array else value)
            key = "pairs" if is_complex(node.meta.get("val")) else "input"
            return {key: len(self.inputs) - 1}
        if isinstance(value, ir.Expr):
            self.numbers.append(value)
            return {"number": len(self.numbers) - 1}
        return self._stated(value)
