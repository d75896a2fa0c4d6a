"""One node of an ONNX graph as converters see it, and the registry of converters.

    @TABLE.op("Flatten")
    def flatten(call: Call) -> Value:
        x = call.tensor(0)
        ...

A value is a graph expression, an array that is known at import, or `Sizes`: integers of which some
are expressions of input sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.sizes import Sizes, array_of
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.onnx.importer import Importer

Value = Any
"""`ir.GraphExpr | np.ndarray | Sizes`."""
Converter = Callable[["Call"], Any]
"""The value of the only output, or a sequence with the values of all outputs that it computes.

`NotImplemented` where the body of the function that defines the operator has to be used.
"""
_REQUIRED: Any = object()


class NeedsBranches(Exception):
    """Bindings must not be in dataflow blocks: a condition is known only when the model runs, or
    ONNX Runtime computes a node."""


class Call:
    """A node with its operands.

    Attributes:
        op, domain, name: as in the node.
        version: of the operator: the opset version since which it is as it is in the model.
        operands: values of the inputs in order; None for inputs that are left out.
        attrs: attributes that the node sets.
        outputs: names of the outputs; "" for outputs that are left out.
    """

    def __init__(
        self,
        imp: Importer,
        node: Any,
        version: int,
        operands: Sequence[Value],
        attrs: Mapping[str, Any],
        defaults: Mapping[str, Any],
    ) -> None:
        self.imp = imp
        self.op: str = node.op_type
        self.domain: str = node.domain
        self.name: str = node.name
        self.node = node
        self.version = version
        self.operands = list(operands)
        self.attrs = attrs
        self.defaults = defaults
        self.outputs: list[str] = list(node.output)

    # ------------------------------------------------------------------------------ attributes

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute, or else `default`, or else the operator's default.

        Raises: ImporterError BW507 if it is missing and has no default.
        """
        if name in self.attrs:
            return self.attrs[name]
        if default is not _REQUIRED:
            return default
        if name in self.defaults:
            return self.defaults[name]
        raise self.error(f"the attribute {name} is missing", "set it")

    def error(self, message: str, help: str, code: str = "BW507") -> ImporterError:
        return ImporterError(message, code=code, help=help)

    def like(self, *operands: Value, **attrs: Any) -> Call:
        """The node with other operands, and with attributes that it need not set itself.

        So that one converter can call that of an operator with the same meaning.
        """
        other = Call(self.imp, self.node, self.version, operands, self.attrs, self.defaults)
        other.attrs = {**self.attrs, **attrs}
        return other

    def without(self, *names: str) -> Call:
        """The node without some of its attributes."""
        kept = {name: value for name, value in self.attrs.items() if name not in names}
        return Call(self.imp, self.node, self.version, self.operands, kept, self.defaults)

    # -------------------------------------------------------------------------------- operands

    def has(self, position: int) -> bool:
        """Whether an input is given."""
        return position < len(self.operands) and self.operands[position] is not None

    def wants(self, position: int) -> bool:
        """Whether an output is used."""
        return position < len(self.outputs) and bool(self.outputs[position])

    def value(self, position: int) -> Value:
        """An input as it is.

        Raises: ImporterError BW507 if it is left out.
        """
        if not self.has(position):
            raise self.error(f"input {position} is missing", "connect it")
        return self.operands[position]

    def tensor(self, position: int) -> ir.GraphExpr:
        """An input as a tensor."""
        return self.imp.tensor(self.value(position))

    def tensors(self) -> list[ir.GraphExpr]:
        """All inputs as tensors."""
        return [self.tensor(position) for position in range(len(self.operands))]

    def optional(self, position: int) -> ir.GraphExpr | None:
        return self.tensor(position) if self.has(position) else None

    def known(self, position: int, what: str) -> np.ndarray[Any, Any]:
        """An input whose value must be known at import.

        Raises: ImporterError BW523 if it is not.
        """
        value = self.value(position)
        if isinstance(value, ir.Constant):
            return value.data
        array = array_of(value)
        if array is None:
            raise self.unknown(position, what)
        return array

    def ints(self, position: int, what: str) -> tuple[int, ...]:
        """An input as integers that are known at import."""
        return tuple(int(v) for v in self.known(position, what).reshape(-1))

    def sizes(self, position: int, what: str) -> tuple[Any, ...]:
        """An input as integers and expressions of input sizes.

        Raises: ImporterError BW523 if its value is computed when the model runs.
        """
        value = self.value(position)
        if isinstance(value, Sizes):
            return tuple(value.items.reshape(-1).tolist())
        return self.ints(position, what)

    def unknown(self, position: int, what: str) -> ImporterError:
        """The error that the value of an input must be known at import."""
        name = self.node.input[position]
        sources = self.imp.sources(name)
        listed = ", ".join(f'"{source}": …' for source in sources)
        self.imp.needed.update(sources)
        return ImporterError(
            f"{what} is computed when the model runs, but decides shapes or the program",
            code="BW523",
            help=f"fix the inputs that it depends on: bw.compile(model, {{{listed}}})"
            if sources
            else "make it a constant or a function of input sizes",
        )

    # --------------------------------------------------------------------------------- results

    def apply(self, name: str, *operands: Any, **attrs: Any) -> ir.GraphExpr:
        """Apply an operator row."""
        return self.imp.builder.op(name, *operands, **attrs)

    def cast(self, value: ir.GraphExpr, dtype: ir.DType | str) -> ir.GraphExpr:
        """Cast unless the type matches already."""
        wanted = ir.dtype_of(dtype)
        if value.tensor_info.dtype is wanted:
            return value
        return self.apply("astype", value, dtype=wanted)

    def scalar(self, value: Any, dtype: ir.DType | None) -> ir.GraphExpr:
        """A constant without dimensions."""
        assert dtype is not None
        return self.imp.tensor(np.asarray(value).astype(dtype.numpy()))

    def reshape(self, value: ir.GraphExpr, shape: Sequence[Any]) -> ir.GraphExpr:
        dims = tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
        return self.apply("reshape", value, shape_value(dims))

    def item(self, value: ir.GraphExpr, index: int) -> ir.GraphExpr:
        """A field of a tuple."""
        info = value.info
        assert isinstance(info, ir.TupleInfo)
        return self.imp.builder.emit(ir.TupleGetItem(value, index, info=info.fields[index]))

    def require(self, condition: ir.Expr, message: str, values: Sequence[ir.Expr] = ()) -> None:
        """Reject calls of the model with sizes for which a condition does not hold.

        Args:
            message: error text with code and remedy, and `%d` for each of `values`.
        """
        self.imp.builder.require(condition, message, values)


class Converters:
    """Converters by domain and operator, of its newest version (see `versions`)."""

    def __init__(self) -> None:
        self.table: dict[tuple[str, str], Converter] = {}

    def op(self, *names: str, domain: str = "") -> Callable[[Converter], Converter]:
        """Decorator that registers a converter for operators."""

        def register(fn: Converter) -> Converter:
            for name in names:
                self.table[domain, name] = fn
            return fn

        return register

    def add(self, other: Converters) -> None:
        """Add the converters of a family."""
        self.table.update(other.table)

    def find(self, domain: str, name: str) -> Converter | None:
        """The converter for an operator."""
        return self.table.get((domain, name))


def dims_of(value: ir.GraphExpr) -> tuple[ir.Expr, ...]:
    shape = value.tensor_info.shape
    assert shape is not None
    return shape


def rank_of(value: ir.GraphExpr) -> int:
    return len(dims_of(value))


def dtype_of(value: ir.GraphExpr) -> ir.DType:
    dtype = value.tensor_info.dtype
    assert dtype is not None
    return dtype


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise ImporterError(
            f"axis {axis} is out of range for rank {rank}",
            code="BW507",
            help=f"use an axis from {-rank} to {rank - 1}",
        )
    return axis % rank if rank else 0


def own_axis(axis: int, rank: int) -> int:
    """An axis counted from the front, of an operand that is no scalar."""
    if rank == 0:
        raise ImporterError("a scalar has no axes", code="BW507", help="add an axis before")
    return axis_of(axis, rank)


def place_of(place: int, rank: int) -> int:
    """A place between axes, counted from the front: `rank` is that after the last one."""
    if not -rank <= place <= rank:
        raise ImporterError(
            f"axis {place} is out of range for rank {rank}",
            code="BW507",
            help=f"use an axis from {-rank} to {rank}",
        )
    return place + rank if place < 0 else place
