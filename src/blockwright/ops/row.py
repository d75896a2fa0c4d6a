"""The operator row: the complete definition of a graph operator.

The importers read `torch` and `onnx`, deduction reads `deduce`, lowering reads `lower`, tests read
`oracle` and `samples`; `doc` is descriptive. To add an operator, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec
import numpy as np

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.ir.printer.graph import ScriptPrinter
from blockwright.support import GraphError

Array = np.ndarray[Any, Any]
Attrs = Mapping[str, Any]


class Sample(msgspec.Struct, frozen=True):
    """One test case: argument arrays (or functions that make them from a generator) and attributes.

    Attributes:
        tolerance: in units in the last place of the result type; `why` justifies values beyond 4.
        absolute: added to the tolerance, for results near zero after cancellation.
    """

    args: tuple[Any, ...]
    attrs: dict[str, Any] = {}
    tolerance: float = 4.0
    absolute: float = 0.0
    why: str = ""


def dims_text(*dims: ir.Expr) -> str:
    """Format dimensions for messages: `n * 4, 384`."""
    return ", ".join(ScriptPrinter().like(dim, dim.dtype) for dim in dims)


class UnequalSizes(GraphError):
    """Two dimensions of operands must be equal, and are not known to be.

    Attributes: `pair` are the dimensions.
    """

    def __init__(self, message: str, a: ir.Expr, b: ir.Expr, help: str | None = None) -> None:
        self.pair = a, b
        help = help or "declare both with the same symbol, or match_cast one of them"
        super().__init__(message, code="BW401", help=help)


class SizeCondition(msgspec.Struct, frozen=True):
    """What an operator requires of sizes and deduction could not prove.

    `message` says what is wrong if it does not hold, with one `%d` for each of `values`.
    """

    holds: ir.Expr
    message: str
    values: tuple[ir.Expr, ...] = ()


class OutOfRange(Exception):
    """An oracle reads a position that the tensor does not have; code compiled from the operator's
    program fails with BW708."""


def positions_of(indices: Array, size: int, *, from_end: bool) -> Array:
    """The positions on an axis that an oracle reads or writes; as `checked_position`.

    Raises: OutOfRange. NumPy counts every negative position from the end.
    """
    wide = indices if indices.dtype == np.uint64 else indices.astype(np.int64)
    places = np.where(wide < 0, wide + size, wide) if from_end and wide.dtype != np.uint64 else wide
    outside = wide[(places < 0) | (places >= size)]
    if outside.size:
        least = -size if from_end and wide.dtype != np.uint64 else 0
        raise OutOfRange(
            f"index {outside.flat[0]} is out of range; it must be at least {least} and less than "
            f"{size}"
        )
    return places.astype(np.int64)


class OpContext:
    """Context of deduction and lowering: facts about symbolic dimensions, and error messages.

    Attributes:
        analyzer: has the declared ranges of the function's symbols, and knows that the sizes of the
            operands are not negative.
        name: the operator's name, for messages.
        unproved: conditions on sizes that each call has to check.
    """

    def __init__(
        self, name: str, analyzer: Analyzer | None = None, operands: Sequence[ir.Info] = ()
    ) -> None:
        self.name = name
        self.analyzer = _with_sizes(analyzer or Analyzer(), operands)
        self.unproved: list[SizeCondition] = []

    def require(self, holds: ir.Expr, what: str) -> None:
        """Require a condition on sizes; calls check it if it is neither proved nor refuted.

        Args:
            what: the error if it does not hold.
        """
        if self.analyzer.prove(holds):
            return
        if self.analyzer.prove(ir.logical_not(holds)):
            raise self.error(what)
        found = dict.fromkeys(ir.free_vars(holds))
        sizes = ", ".join(f"{v.name} = %d" for v in found)
        message = f"{self.name}: {what}".replace("%", "%%") + f", got {sizes}"
        self.unproved.append(SizeCondition(holds, message, tuple(found)))

    def equal(self, a: ir.Expr, b: ir.Expr) -> bool:
        """Whether two dimensions are provably equal."""
        return a is b or self.analyzer.prove_equal(a, b)

    def require_equal(self, a: ir.Expr, b: ir.Expr, what: str) -> None:
        """Raise UnequalSizes unless two dimensions are equal for all values of their symbols."""
        if not self.equal(a, b):
            text = f"{dims_text(a)} and {dims_text(b)} are not known to be equal"
            raise UnequalSizes(f"{self.name}: {what}: {text}", a, b)

    def error(self, message: str, help: str | None = None) -> GraphError:
        return GraphError(f"{self.name}: {message}", code="BW401", help=help)


def _with_sizes(analyzer: Analyzer, operands: Sequence[ir.Info]) -> Analyzer:
    """The analyzer, or a copy that also knows that the sizes of the operands are at least 0."""
    sizes = dict.fromkeys(d for info in operands for d in _sizes(info))
    conditions = [ir.compare(ir.GE, size, ir.const(0, size.dtype)) for size in sizes]
    unknown = [condition for condition in conditions if not analyzer.prove(condition)]
    if not unknown:
        return analyzer
    analyzer = analyzer.copy()
    for condition in unknown:
        analyzer.learn(condition)
    return analyzer


def _sizes(info: ir.Info) -> list[ir.Expr]:
    """The symbolic sizes of a tensor, or of all tensors of a tuple."""
    if isinstance(info, ir.TupleInfo):
        return [size for field in info.fields for size in _sizes(field)]
    shape = info.shape if isinstance(info, ir.TensorInfo) else None
    return [size for size in shape or () if not isinstance(size, ir.IntImm)]


class TorchCall(msgspec.Struct, frozen=True):
    """How calls of a row's PyTorch overloads are converted to calls of the row.

    Overload arguments that name an attribute set it. Tensors, and numbers that may replace tensors,
    become operands in order. All other arguments must have their default values.

    Attributes:
        attrs: overload argument → attribute, where the names differ. `dim` also sets `axis` or
            `axes`, and `keepdim` sets `keepdims`, without being listed.
        types: the element type to which operands are converted.
            "promoted": PyTorch's common type of the operands.
            "float": the same, but the default float type for integers and bools.
            "result": the type of the overload's result.
            "own": each operand keeps its own type.
            The result of the row is cast to the type of the overload's result.
        bools: whether the row accepts bools; if not, they are converted to integers.
        keeps_divisor: whether a number on the right, or a tensor of one element, is not rounded to
            half precision: the row computes in float32 and rounds only its result, as PyTorch's
            kernels for products and quotients do. All other numbers are first rounded to the
            operands' type.
        empty_axes: whether an empty `dim` reduces over no axis; if not, it reduces over all axes.
        needs_elements: whether PyTorch raises if a reduced axis has no elements.
    """

    attrs: Mapping[str, str] = {}
    types: Literal["promoted", "float", "result", "own"] = "own"
    bools: bool = False
    keeps_divisor: bool = False
    empty_axes: bool = False
    needs_elements: bool = False


class Bounded(msgspec.Struct, frozen=True):
    """Results of which one size is known only when they are computed, as large as they can be.

    Attributes:
        results: annotations with the largest sizes, of known shape and type.
        axes: for each result, the axis that has the size; None for a result without it.
    """

    results: tuple[ir.TensorInfo, ...]
    axes: tuple[int | None, ...]

    @property
    def limit(self) -> ir.Expr:
        """The largest value of the size."""
        pairs = zip(self.results, self.axes, strict=True)
        return next(r.shape[a] for r, a in pairs if a is not None and r.shape is not None)

    def part(self, written: Sequence[Array]) -> list[Array]:
        """The part that counts of what the program wrote: the largest results, and the size."""
        *results, size = written
        pairs = zip(results, self.axes, strict=True)
        return [r if axis is None else r.take(range(int(size[0])), axis) for r, axis in pairs]


Bounds = Callable[[OpContext, Sequence[ir.TensorInfo], Attrs], Bounded]
Deduce = Callable[[OpContext, Sequence[ir.Info], Attrs], ir.Info]
Lower = Callable[[OpContext, Sequence[ir.TensorInfo], Attrs], ir.PrimFunc]
Oracle = Callable[..., Any]


class Parameters(msgspec.Struct, frozen=True):
    """Parameters of an implementation; subclasses have typed fields."""


class NoParameters(Parameters, frozen=True):
    """Of an implementation without parameters."""


P = TypeVar("P", bound=Parameters)


def _always(ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs, parameters: Any) -> str:
    return ""


class Implementation(msgspec.Struct, Generic[P], frozen=True):
    """An implementation of an operator beside the default one, `OpRow.lower`.

    A call names it in the attribute `implementation`; see `ops/implementation.py`.

    Attributes:
        lower: tensor program, like `OpRow.lower`, for given parameters.
        parameters: the type of its parameters.
        why_not: the reason why it does not apply to a call; "" if it does. What is not known yet
            (a shape or type that is None) is no reason.
        accuracy: how its results differ from those of the default.
        doc: one sentence.
    """

    name: str
    lower: Callable[[OpContext, Sequence[ir.TensorInfo], Attrs, P], ir.PrimFunc]
    accuracy: str
    parameters: type[P] = NoParameters  # type: ignore[assignment]
    why_not: Callable[[OpContext, Sequence[ir.TensorInfo], Attrs, P], str] = _always
    doc: str = ""


Kind = (
    Literal[
        "flag",
        "int",
        "int or None",
        "ints",
        "tuple",
        "real",
        "not zero",
        "scalar",
        "size",
        "text",
        "type",
    ]
    | tuple[str, ...]
)
"""Kind of values that an attribute accepts, see `attribute_kinds.py`; a tuple lists words."""

LayoutRule = Literal[
    "",
    "elementwise",
    "axis",
    "axes reduced",
    "axis reduced",
    "concat",
    "pad",
    "broadcast_to",
    "channel norm",
    "convolution",
    "pool",
]
"""How an operator runs on operands whose axes are stored in another order, such as channels last.

`passes/layout/layout_rules.py` has a function per rule. The general ones are
"": only in the default order.
"elementwise": in any order; operands broadcast against each other.
"axis": the attribute `axis` is renumbered; the result has the order of the operand.
"axes reduced", "axis reduced": the same for reductions; `keepdims` keeps the reduced axes.
The others belong to single operators or families.
"""


class OpRow(msgspec.Struct, frozen=True):
    """One operator.

    Attributes:
        name: as in `R.<name>`.
        args: names of the tensor arguments; a trailing "?" marks an optional one, "*" a list.
        attrs: attribute name → default, or `REQUIRED` if there is none.
        deduce: result annotation from argument annotations; raises GraphError if invalid.
        lower: tensor program (inputs, then output) for given argument annotations; None for
            operators that only the graph level handles (views, shapes).
        oracle: NumPy reference: `oracle(*arrays, **attrs)`.
        torch: PyTorch overloads that map to this operator; the importer has no other list.
        onnx: ONNX operators that map to this operator. They are converted by the row alone if their
            inputs are its arguments and their attributes have the same names.
        samples: test cases.
        doc: one or two sentences.
        torch_call: how the overloads in `torch` are converted to calls of the row.
        layout: how the operator runs on operands stored channels-last.
        kinds: attribute name → kind of its values. By default, it follows from the name if other
            operators have an attribute of that name, and otherwise from the type of its default.
        implementations: alternatives to `lower`. An operator that has some also accepts the
            attribute `implementation`.
        bounded: for an operator whose result has a size that depends on the elements: the largest
            results. `deduce` then gives results of unknown shape, and the program of `lower` writes
            results of the largest size, of which the first elements count, and last the size, an
            int64 tensor of one element.
        conditional: whether `deduce` may leave conditions on sizes to the call
            (`OpContext.require`).
    """

    name: str
    args: tuple[str, ...]
    deduce: Deduce
    lower: Lower | None
    oracle: Oracle
    attrs: dict[str, Any] = {}
    torch: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    doc: str = ""
    torch_call: TorchCall = TorchCall()
    layout: LayoutRule = ""
    kinds: dict[str, Kind] = {}
    implementations: tuple[Implementation[Any], ...] = ()
    bounded: Bounds | None = None
    conditional: bool = False


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


def tensor(ctx: OpContext, info: ir.Info, position: int) -> ir.TensorInfo:
    """Argument `position` as a tensor annotation."""
    if not isinstance(info, ir.TensorInfo):
        raise ctx.error(f"argument {position} must be a tensor, got {info!r}")
    return info


def known_shape(ctx: OpContext, info: ir.TensorInfo, position: int) -> tuple[ir.Expr, ...]:
    """The argument's dimensions; raises if at most the rank is known."""
    if info.shape is None:
        raise ctx.error(
            f"argument {position} has no known shape", "declare its shape with match_cast first"
        )
    return info.shape


def known_dtype(ctx: OpContext, info: ir.TensorInfo, position: int) -> ir.DType:
    """The argument's element type; raises if unknown."""
    if info.dtype is None:
        raise ctx.error(f"argument {position} has no known element type")
    return info.dtype


def broadcast_shapes(ctx: OpContext, shapes: Sequence[Sequence[ir.Expr]]) -> tuple[ir.Expr, ...]:
    """NumPy broadcasting of symbolic shapes, aligned at the last dimension."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[ir.Expr] = []
    for axis in range(rank):
        chosen: ir.Expr = ir.const(1, "int64")
        for shape in shapes:
            position = axis - (rank - len(shape))
            if position < 0 or ir.is_const_int(shape[position], 1):
                continue
            dim = shape[position]
            if ir.is_const_int(chosen, 1):
                chosen = dim
            else:
                ctx.require_equal(chosen, dim, f"dimension {axis} does not broadcast")
        out.append(chosen)
    return tuple(out)


def broadcast_index(shape: Sequence[ir.Expr], indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
    """Indices into an operand of `shape` for element `indices` of the broadcast result."""
    tail = indices[len(indices) - len(shape) :]
    zero = ir.const(0, "int64")
    return tuple(
        zero if ir.is_const_int(dim, 1) else index for dim, index in zip(shape, tail, strict=True)
    )


def normalize_axis(ctx: OpContext, axis: int, rank: int) -> int:
    """`axis` counted from the front; raises if out of range."""
    if not -rank <= axis < rank:
        raise ctx.error(f"axis {axis} is out of range for rank {rank}")
    return axis % rank
