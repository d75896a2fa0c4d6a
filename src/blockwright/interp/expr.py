"""Compile expressions to Python closures `env -> value`, once per function.

Index expressions (docs/semantics.md, Integers) evaluate to Python ints or int64 arrays and do not
wrap. All other expressions evaluate to NumPy values of their type. Vector elements are on the last
axis, after the lane axis if there is one.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from blockwright.interp import numeric, ops
from blockwright.interp.lanes import FIRST_SLOT, Env, Fn, Site, compress, narrowed, per_lane, same
from blockwright.intrin.hardware import PRODUCTS
from blockwright.ir import (
    OPS,
    BinaryOp,
    Broadcast,
    Buffer,
    BufferLoad,
    Call,
    Cast,
    CompareOp,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Node,
    Not,
    Or,
    Ramp,
    Select,
    Shuffle,
    StringImm,
    Var,
    collect,
    const,
    op_has_effect,
    walk,
)
from blockwright.ir import expr as E
from blockwright.ir.dtype import INT64
from blockwright.support import InterpretError, Span


def _spread(value: Any) -> Any:
    """Add a vector axis to a per-lane scalar for broadcasting."""
    return value[:, None] if type(value) is np.ndarray else value


class ExprCompiler:
    """Assigns environment slots and compiles the expressions of one function."""

    _table: ClassVar[dict[type[Expr], str]] = {
        BufferLoad: "_load", Call: "_call", Cast: "_cast", E.And: "_logical", Or: "_logical",
        Not: "_not", Select: "_select", Let: "_let", Ramp: "_ramp", Broadcast: "_broadcast",
        Shuffle: "_shuffle", StringImm: "_string", FloatImm: "_float",
    }  # fmt: skip

    def __init__(self) -> None:
        self.slots: dict[Node, int] = {}
        self.count: int = FIRST_SLOT
        self.here: Span | None = None
        self.defined: set[Var] = set()
        self.values: set[Var] = set()  # integer variables with wrapping values
        self.visible: list[tuple[str, int]] = []
        self.block = ""
        self._indexness: dict[Expr, bool] = {}

    # ----------------------------------------------------------------------------------- names
    def slot(self, node: Var | Buffer) -> int:
        """The slot of a variable or view; the slot after a view holds its position."""
        result = self.slots.get(node)
        if result is None:
            result = self.slots[node] = self.count
            self.count += 2 if isinstance(node, Buffer) else 1
        return result

    def define(self, var: Var, is_value: bool = False) -> int:
        self.defined.add(var)
        if is_value:
            self.values.add(var)
        return self.slot(var)

    def site(self, node: Node | None) -> Site:
        """The site of a node, with the span of the enclosing statement as a fallback."""
        span = node.span if node is not None else None
        return Site(tuple(self.visible), self.block, span or self.here)

    # ----------------------------------------------------------------------------------- kinds
    def is_index(self, expr: Expr) -> bool:
        """Whether an integer expression consists only of loop variables, sizes and constants."""
        result = self._indexness.get(expr)
        if result is None:
            result = self._indexness[expr] = self._decide_index(expr)
        return result

    def _decide_index(self, expr: Expr) -> bool:
        match expr:
            case IntImm():
                return expr.dtype.is_index
            case Var():
                return expr.dtype.is_index and expr not in self.values
            case BinaryOp():
                return self.is_index(expr.a) and self.is_index(expr.b)
            case Cast():
                return expr.type.is_index and self.is_index(expr.value)
            case Ramp():
                return self.is_index(expr.base) and self.is_index(expr.stride)
            case Broadcast():
                return self.is_index(expr.value)
            case Select():
                parts = (expr.condition, expr.true_value, expr.false_value)
                return self._is_index_choice(*parts)
            case Call(op="if_then_else"):
                return self._is_index_choice(*expr.args)
            case Call(op="likely"):
                return self.is_index(expr.args[0])
            case Call(op="checked_index" | "as_index"):
                return expr.dtype.is_index
            case Call(op="shift_left" | "shift_right" | "bitwise_and"):
                return all(map(self.is_index, expr.args))
            case Let():
                named = not expr.var.dtype.is_int or self.is_index(expr.value)
                if not named:
                    self.values.add(expr.var)
                return named and expr.dtype.is_index and self.is_index(expr.body)
            case _:
                return False

    def _is_index_choice(self, condition: Expr, a: Expr, b: Expr) -> bool:
        """Whether both branches and the condition are index expressions."""
        return self.is_index(a) and self.is_index(b) and self._depends_on_indices(condition)

    def _depends_on_indices(self, condition: Expr) -> bool:
        match condition:
            case IntImm():
                return True
            case E.And() | Or():
                return all(map(self._depends_on_indices, (condition.a, condition.b)))
            case Not():
                return self._depends_on_indices(condition.a)
            case Broadcast():
                return self._depends_on_indices(condition.value)
            case Call(op="likely"):
                return self._depends_on_indices(condition.args[0])
            case CompareOp():
                return self.is_index(condition.a) and self.is_index(condition.b)
            case _:
                return False

    def value(self, expr: Expr) -> Fn:
        """A closure that returns a NumPy value of the expression's type."""
        if not (expr.dtype.is_int and self.is_index(expr)):
            fn = self._compile(expr)
            if not expr.dtype.is_bool or not _may_be_python(expr):
                return fn
            return lambda env: np.bool_(x) if isinstance(x := fn(env), bool) else x
        dtype = expr.dtype.element
        if isinstance(expr, IntImm):
            return self._number(expr)
        exact = self._compile(expr)
        return lambda env: numeric.from_index(exact(env), dtype)

    def index(self, expr: Expr) -> Fn:
        """A closure that returns a Python int or an int64 array."""
        fn = self._compile(expr)
        if self.is_index(expr):
            return fn

        def convert(env: Env) -> Any:
            value = fn(env)
            return value.astype(np.int64) if type(value) is np.ndarray else int(value)

        return convert

    def kept(self, expr: Expr, fn: Fn) -> Fn:
        """Memoize the last result of `fn`, the closure of an expression that reads only variables.

        An iteration of a loop inside lanes usually changes a single variable. If an expression does
        not depend on it, the same array object is returned, so dependent results are reused too.
        """
        parts = list(walk(expr))
        if isinstance(expr, (Var, IntImm)) or any(
            isinstance(p, (BufferLoad, Call, Let)) for p in parts
        ):
            return fn
        slots = sorted({self.slot(p) for p in parts if isinstance(p, Var)})
        key = object()

        def remember(env: Env) -> Any:
            if env[0] is None:
                return fn(env)
            memo = env[1].memo
            now = [env[slot] for slot in slots]
            matches = memo.get(key)
            if matches is not None and all(map(same, matches[0], now)):
                return matches[1]
            result = fn(env)
            if type(result) is np.ndarray:
                memo[key] = (now, result)
            return result

        return remember

    def _compile(self, expr: Expr) -> Fn:
        if isinstance(expr, IntImm):
            if not expr.dtype.is_index:
                return self._number(expr)
            number = expr.value
            return lambda env: number
        if isinstance(expr, Var):
            return self._var(expr)
        if isinstance(expr, BinaryOp):
            return self._binary(expr)
        if isinstance(expr, CompareOp):
            return self._compare(expr)
        method = self._table.get(type(expr))
        if method is None:
            raise InterpretError(
                f"cannot run the expression {type(expr).__name__}", code="BW757", span=expr.span
            )
        return getattr(self, method)(expr)

    # ---------------------------------------------------------------------- leaves and operators
    def _var(self, expr: Var) -> Fn:
        if expr not in self.defined:
            raise InterpretError(
                f"variable {expr.name} is used but not defined",
                code="BW757",
                span=expr.span,
                help="pass it as a scalar parameter or as a dimension of a buffer",
            )
        slot, dtype = self.slot(expr), expr.dtype
        if dtype.is_int and not dtype.is_index and expr not in self.values:
            # a loop variable or size of a type that wraps around
            return lambda env: numeric.from_index(env[slot], dtype)
        return lambda env: env[slot]

    def _number(self, expr: IntImm) -> Fn:
        """A closure that returns a constant as a value of its type."""
        fixed = numeric.constant(expr.value, expr.dtype)
        return lambda env: fixed

    def _float(self, expr: FloatImm) -> Fn:
        fixed = numeric.constant(expr.value, expr.dtype)
        return lambda env: fixed

    def _string(self, expr: StringImm) -> Fn:
        text = expr.value
        return lambda env: text

    def _operands(self, a: Expr, b: Expr) -> tuple[Fn, Fn]:
        if a.dtype.is_int and self.is_index(a) and self.is_index(b):
            return self.index(a), self.index(b)
        return self.value(a), self.value(b)

    def _binary(self, expr: BinaryOp) -> Fn:
        a, b = self._operands(expr.a, expr.b)
        dtype, kind = expr.dtype, type(expr)
        index = self.is_index(expr)
        op = numeric.index_binary(kind) if index else numeric.value_binary(kind, dtype)
        divides = kind in (E.Div, E.Mod, E.FloorDiv, E.FloorMod) and not dtype.is_float
        if index and kind is E.Mul and not _is_small_multiple(expr):
            return self._product(expr, a, b)
        if not divides:
            return lambda env: op(a(env), b(env))
        site, lanes = self.site(expr), dtype.lanes

        def divide(env: Env) -> Any:
            divisor = b(env)
            try:
                return op(a(env), divisor)
            except numeric.ZeroDivisor:
                zero = np.asarray(divisor).reshape(-1) == 0
                raise site.error(
                    env, "BW754", "integer division by zero", int(np.argmax(zero)) // lanes
                ) from None

        return divide

    def _product(self, expr: BinaryOp, a: Fn, b: Fn) -> Fn:
        """A product of index expressions, with a check for 64-bit overflow."""
        site = self.site(expr)

        def multiply(env: Env) -> Any:
            left, right = a(env), b(env)
            if numeric.leaves_64_bits(left, right):
                raise site.error(
                    env,
                    "BW767",
                    f"an index overflows 64 bits: a product of {np.max(left)} and {np.max(right)}",
                )
            return left * right

        return multiply

    def _compare(self, expr: CompareOp) -> Fn:
        a, b = self._operands(expr.a, expr.b)
        op = numeric.COMPARE[type(expr)]
        return lambda env: op(a(env), b(env))

    def _logical(self, expr: E.And | Or) -> Fn:
        effects = any(op_has_effect(call.op) for call in collect(expr.b, Call))
        if effects and expr.dtype.lanes == 1:
            constant = const(isinstance(expr, Or), "bool")
            sides = (constant, expr.b) if isinstance(expr, Or) else (expr.b, constant)
            return self._lazy(Call("if_then_else", (expr.a, *sides), expr.dtype))
        a, b = self._compile(expr.a), self._compile(expr.b)
        if isinstance(expr, E.And):
            return lambda env: a(env) & b(env)
        return lambda env: a(env) | b(env)

    def _not(self, expr: Not) -> Fn:
        a = self._compile(expr.a)
        return lambda env: np.logical_not(a(env))

    def _cast(self, expr: Cast) -> Fn:
        source, target = expr.value.dtype, expr.type.element
        if source.is_handle or target.is_handle:
            raise InterpretError("a handle cannot be cast", code="BW757", span=expr.span)
        if source.is_int and self.is_index(expr.value):
            exact = self.index(expr.value)
            if target.is_int:
                if self.is_index(expr):
                    return exact  # index expressions are mathematical integers at every width
                return lambda env: numeric.from_index(exact(env), target)
        value = self.value(expr.value)
        return lambda env: numeric.cast(value(env), source, target)

    # ------------------------------------------------------------------------------- structure
    def _branches(self, expr: Expr, a: Expr, b: Expr) -> tuple[Fn, Fn]:
        if expr.dtype.is_int and self.is_index(expr):
            return self.index(a), self.index(b)
        return self.value(a), self.value(b)

    def _select(self, expr: Select) -> Fn:
        condition = self._compile(expr.condition)
        a, b = self._branches(expr, expr.true_value, expr.false_value)
        spread = expr.condition.dtype.lanes == 1 < expr.dtype.lanes

        def select(env: Env) -> Any:
            chosen, x, y = condition(env), a(env), b(env)
            if not numeric.is_array(chosen):
                return x if chosen else y
            return numeric.choose(_spread(chosen) if spread else chosen, x, y)

        return select

    def _lazy(self, expr: Call) -> Fn:
        """`if_then_else`: each lane evaluates only the side it selects."""
        if expr.args[0].dtype.lanes > 1:
            return self._select(Select(*expr.args, span=expr.span))
        condition = self.condition(expr.args[0])
        a, b = self._branches(expr, expr.args[1], expr.args[2])
        lanes = expr.dtype.lanes
        index = expr.dtype.is_int and self.is_index(expr)
        kind = np.dtype(np.int64) if index else expr.dtype.numpy()

        def choose(env: Env) -> Any:
            chosen = condition(env)
            if type(chosen) is not np.ndarray:
                return a(env) if chosen else b(env)
            if chosen.all():
                return a(env)
            if not chosen.any():
                return b(env)
            result = np.empty((len(chosen), lanes) if lanes > 1 else len(chosen), kind)
            result[chosen] = a(narrowed(env, chosen, a))
            other = ~chosen
            result[other] = b(compress(env, other))
            return result

        return choose

    def _let(self, expr: Let) -> Fn:
        is_value = not (expr.value.dtype.is_int and self.is_index(expr.value))
        bound = self.value(expr.value) if is_value else self.index(expr.value)
        slot = self.define(expr.var, is_value)
        body, vector = self._compile(expr.body), expr.var.dtype.lanes > 1

        def let(env: Env) -> Any:
            env[slot] = per_lane(env, bound(env), vector)
            return body(env)

        return let

    def _ramp(self, expr: Ramp) -> Fn:
        index = self.is_index(expr)
        kind = np.dtype(np.int64) if index else expr.dtype.numpy()
        compile_part = self.index if index else self.value
        base, stride = compile_part(expr.base), compile_part(expr.stride)
        steps = np.arange(expr.lanes).astype(kind)
        dtype = expr.dtype

        def ramp(env: Env) -> Any:
            value = _spread(base(env)) + _spread(stride(env)) * steps
            return value if index else numeric.wrap_narrow(value, dtype)

        return ramp

    def _broadcast(self, expr: Broadcast) -> Fn:
        index = expr.dtype.is_int and self.is_index(expr)
        value = self.index(expr.value) if index else self.value(expr.value)
        kind = np.dtype(np.int64) if index else expr.dtype.numpy()
        lanes = expr.lanes

        def broadcast(env: Env) -> Any:
            one = value(env)
            if type(one) is not np.ndarray:
                if index:  # a value beyond 64 bits is unspecified; it must not raise
                    one = numeric.wrap_python(int(one), INT64)
                return np.full(lanes, one, kind)
            return np.broadcast_to(one[:, None], (len(one), lanes))

        return broadcast

    def _shuffle(self, expr: Shuffle) -> Fn:
        parts = [(self.value(v), v.dtype.lanes) for v in expr.vectors]
        picks, scalar = np.array(expr.indices), len(expr.indices) == 1

        def shuffle(env: Env) -> Any:
            vectors = [v(env) if n > 1 else np.asarray(v(env))[..., None] for v, n in parts]
            lead = np.broadcast_shapes(*(v.shape[:-1] for v in vectors))
            joined = np.concatenate([np.broadcast_to(v, (*lead, v.shape[-1])) for v in vectors], -1)
            result = joined[..., picks]
            return result[..., 0] if scalar else result

        return shuffle

    # ----------------------------------------------------------------------------------- calls
    def _call(self, expr: Call) -> Fn:
        if expr.op == "if_then_else":
            return self._lazy(expr)
        if expr.op == "likely" and expr.dtype.is_int and self.is_index(expr):
            return self.index(expr.args[0])
        if expr.op == "reinterpret" and not expr.dtype.is_handle:
            value, target = self.value(expr.args[0]), expr.dtype
            return lambda env: ops.reinterpret(value(env), target)
        row = (ops.OF_INDICES if self.is_index(expr) else ops.PURE).get(expr.op)
        if row is None:
            dot = PRODUCTS.get(expr.op)
            return self._effect(expr) if dot is None else self._compile(dot.meaning(*expr.args))
        return self._pure(expr, row)

    def _effect(self, expr: Call) -> Fn:
        # operations outside of the table are kept as written, such as those of other compilers
        known = "it is not supported here" if expr.op in OPS else "nothing defines what it computes"
        raise InterpretError(
            f"the interpreter cannot run operation {expr.op!r}: {known}",
            code="BW757",
            span=expr.span,
            help="replace it by operations the interpreter knows, for example "
            "through the tensor intrinsic's meaning",
        )

    def _pure(self, expr: Call, row: ops.Row) -> Fn:
        args = [self.index(a) if self.is_index(expr) else self.value(a) for a in expr.args]
        dtype = expr.args[0].dtype
        if not expr.op.startswith("vector_reduce"):
            dtype = dtype.element
        site, name = self.site(expr), expr.op

        def call(env: Env) -> Any:
            try:
                return row(dtype, *[a(env) for a in args])
            except ops.Unsupported as reason:
                raise site.error(
                    env, "BW757", f"the interpreter cannot run this {name}: {reason}"
                ) from None
            except numeric.Overflow:
                raise site.error(env, "BW767", f"an index overflows 64 bits: {name}") from None
            except ops.BadShift:
                raise site.error(
                    env, "BW759", f"{name} by an amount outside 0 … {dtype.bits - 1}"
                ) from None

        return call

    def _load(self, expr: BufferLoad) -> Fn:
        raise NotImplementedError

    # For the statement compiler, where the result determines control flow.
    def condition(self, expr: Expr) -> Fn:
        """A closure that returns a bool, or a bool array over the lanes."""
        return self.kept(expr, self._compile(expr))


def _may_be_python(expr: Expr) -> bool:
    """Whether the closure may return a Python bool, as comparisons of index expressions do."""
    return not isinstance(expr, (BufferLoad, Cast, Var))


def _is_small_multiple(expr: BinaryOp) -> bool:
    """Whether a product has a variable and a small constant as factors, so it fits in 64 bits."""
    constants = [n.value for n in (expr.a, expr.b) if isinstance(n, IntImm)]
    variables = [n for n in (expr.a, expr.b) if isinstance(n, Var)]
    return len(constants) == len(variables) == 1 and abs(constants[0]) < 1 << 20
