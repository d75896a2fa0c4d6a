"""Scalar and vector expressions of the tensor level.

`==` and truth tests raise: building IR silently or comparing identities silently would each be
wrong half of the time. Write `EQ(a, b)` for a comparison in the program, `a is b` for identity,
`structural_equal(a, b)` for structural equality.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from blockwright.ir.dtype import BOOL, HANDLE, INT32, DType
from blockwright.ir.node import Node
from blockwright.support import IRError

if TYPE_CHECKING:
    from blockwright.ir.buffer import Buffer

ExprLike = Any
"""An `Expr`, or a Python int, float or bool that `ir.convert.as_expr` turns into a constant."""


class Expr(Node, frozen=True, eq=False, kw_only=True):
    """Base of all expressions; `dtype` is computed from the node alone."""

    @property
    def dtype(self) -> DType:
        raise NotImplementedError(type(self).__name__)

    def __eq__(self, other: object) -> NoReturn:
        raise IRError(
            "`==` on expressions is ambiguous",
            code="BW202",
            help="use ir.EQ(a, b) to build a comparison, `a is b` for identity, "
            "ir.structural_equal(a, b) to compare structure",
        )

    def __ne__(self, other: object) -> NoReturn:
        raise IRError(
            "`!=` on expressions is ambiguous",
            code="BW202",
            help="use ir.NE(a, b), `a is not b` or not ir.structural_equal(a, b)",
        )

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise IRError(
            "an expression has no truth value while the program is being built",
            code="BW203",
            help="use T.if_then_else / T.Select, `if` inside a script, or & | ~ on conditions",
        )

    # Operators are defined in `ir.operators`, which installs them here (they fold constants and
    # match types; constructors themselves only store facts).
    if TYPE_CHECKING:

        def __add__(self, other: ExprLike) -> Expr: ...
        def __radd__(self, other: ExprLike) -> Expr: ...
        def __sub__(self, other: ExprLike) -> Expr: ...
        def __rsub__(self, other: ExprLike) -> Expr: ...
        def __mul__(self, other: ExprLike) -> Expr: ...
        def __rmul__(self, other: ExprLike) -> Expr: ...
        def __floordiv__(self, other: ExprLike) -> Expr: ...
        def __rfloordiv__(self, other: ExprLike) -> Expr: ...
        def __mod__(self, other: ExprLike) -> Expr: ...
        def __rmod__(self, other: ExprLike) -> Expr: ...
        def __truediv__(self, other: ExprLike) -> Expr: ...
        def __rtruediv__(self, other: ExprLike) -> Expr: ...
        def __lt__(self, other: ExprLike) -> Expr: ...
        def __le__(self, other: ExprLike) -> Expr: ...
        def __gt__(self, other: ExprLike) -> Expr: ...
        def __ge__(self, other: ExprLike) -> Expr: ...
        def __and__(self, other: ExprLike) -> Expr: ...
        def __rand__(self, other: ExprLike) -> Expr: ...
        def __or__(self, other: ExprLike) -> Expr: ...
        def __ror__(self, other: ExprLike) -> Expr: ...
        def __xor__(self, other: ExprLike) -> Expr: ...
        def __rxor__(self, other: ExprLike) -> Expr: ...
        def __lshift__(self, other: ExprLike) -> Expr: ...
        def __rlshift__(self, other: ExprLike) -> Expr: ...
        def __rshift__(self, other: ExprLike) -> Expr: ...
        def __rrshift__(self, other: ExprLike) -> Expr: ...
        def __neg__(self) -> Expr: ...
        def __invert__(self) -> Expr: ...


class Var(Expr, frozen=True, eq=False):
    """A variable, identified by the node itself, not by its name."""

    name: str
    type: DType = INT32

    @property
    def dtype(self) -> DType:
        return self.type


class IntImm(Expr, frozen=True, eq=False):
    """An integer or boolean constant."""

    value: int
    type: DType = INT32

    @property
    def dtype(self) -> DType:
        return self.type


class FloatImm(Expr, frozen=True, eq=False):
    """A floating-point constant; the value is kept as a Python float (NaN and infinities too)."""

    value: float
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type


class StringImm(Expr, frozen=True, eq=False):
    """A string argument of a call or annotation."""

    value: str

    @property
    def dtype(self) -> DType:
        return HANDLE


class Cast(Expr, frozen=True, eq=False):
    """Conversion of `value` to `type` (see docs/semantics.md for rounding and saturation)."""

    type: DType
    value: Expr

    @property
    def dtype(self) -> DType:
        return self.type


class BinaryOp(Expr, frozen=True, eq=False):
    """Arithmetic on two operands of one type."""

    a: Expr
    b: Expr
    symbol: ClassVar[str] = "?"

    @property
    def dtype(self) -> DType:
        node: Expr = self.a
        while isinstance(node, BinaryOp):  # iterative: operand chains can be thousands deep
            node = node.a
        return node.dtype


class Add(BinaryOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "+"


class Sub(BinaryOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "-"


class Mul(BinaryOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "*"


class Div(BinaryOp, frozen=True, eq=False):
    """True division of floats; on integers, division truncated towards zero (as in C)."""

    symbol: ClassVar[str] = "/"


class Mod(BinaryOp, frozen=True, eq=False):
    """Remainder of the truncating integer division."""

    symbol: ClassVar[str] = "truncmod"


class FloorDiv(BinaryOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "//"


class FloorMod(BinaryOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "%"


class Min(BinaryOp, frozen=True, eq=False):
    """Smaller operand; NaN if either is NaN."""

    symbol: ClassVar[str] = "min"


class Max(BinaryOp, frozen=True, eq=False):
    """Larger operand; NaN if either is NaN."""

    symbol: ClassVar[str] = "max"


class CompareOp(Expr, frozen=True, eq=False):
    """Comparison of two operands of one type; bool with the operands' lanes."""

    a: Expr
    b: Expr
    symbol: ClassVar[str] = "?"

    @property
    def dtype(self) -> DType:
        return BOOL.with_lanes(self.a.dtype.lanes)


class EQ(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "=="


class NE(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "!="


class LT(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "<"


class LE(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = "<="


class GT(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = ">"


class GE(CompareOp, frozen=True, eq=False):
    symbol: ClassVar[str] = ">="


class And(Expr, frozen=True, eq=False):
    """Logical and; both operands are bool. May short-circuit: operands have no effects."""

    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return _bool_like(self.a)


class Or(Expr, frozen=True, eq=False):
    """Logical or; both operands are bool."""

    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:
        return _bool_like(self.a)


class Not(Expr, frozen=True, eq=False):
    a: Expr

    @property
    def dtype(self) -> DType:
        return _bool_like(self.a)


def _bool_like(operand: Expr) -> DType:
    """Bool with the lanes of `operand`; iterative, as condition chains can be thousands deep."""
    while isinstance(operand, (And, Or, Not)):
        operand = operand.a
    return BOOL.with_lanes(operand.dtype.lanes)


class Select(Expr, frozen=True, eq=False):
    """Both sides are evaluated, one is taken; `Call("if_then_else")` is the lazy form."""

    condition: Expr
    true_value: Expr
    false_value: Expr

    @property
    def dtype(self) -> DType:
        return self.true_value.dtype


class Let(Expr, frozen=True, eq=False):
    """`value` bound to `var` inside `body`."""

    var: Var
    value: Expr
    body: Expr

    @property
    def dtype(self) -> DType:
        return self.body.dtype


class BufferLoad(Expr, frozen=True, eq=False):
    """Read of a buffer element, or of a vector when the last index is a `Ramp`.

    `predicate` is a bool vector of the same lanes; masked-off lanes are not read and give zero.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    predicate: Expr | None = None

    @property
    def dtype(self) -> DType:
        lanes = self.indices[-1].dtype.lanes if self.indices else 1
        return self.buffer.dtype.with_lanes(self.buffer.dtype.lanes * lanes)


class Ramp(Expr, frozen=True, eq=False):
    """The vector base, base + stride, … of `lanes` elements."""

    base: Expr
    stride: Expr
    lanes: int

    @property
    def dtype(self) -> DType:
        return self.base.dtype.with_lanes(self.lanes)


class Broadcast(Expr, frozen=True, eq=False):
    """A scalar repeated `lanes` times."""

    value: Expr
    lanes: int

    @property
    def dtype(self) -> DType:
        return self.value.dtype.with_lanes(self.lanes)


class Shuffle(Expr, frozen=True, eq=False):
    """Lanes picked by constant `indices` from the concatenation of `vectors`."""

    vectors: tuple[Expr, ...]
    indices: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        return self.vectors[0].dtype.with_lanes(len(self.indices))


class Call(Expr, frozen=True, eq=False):
    """Application of a builtin operation (`ir.op`) to arguments.

    `op` names a row of the builtin table, for example ``"exp"`` or ``"if_then_else"``.
    Calls of other functions use ``"call_packed"`` / ``"call_extern"`` with the name as the first
    argument (a `StringImm`), and ``"call_global"`` for a function of the same module.
    """

    op: str
    args: tuple[Expr, ...]
    type: DType

    @property
    def dtype(self) -> DType:
        return self.type
