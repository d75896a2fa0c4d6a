"""Emit builtin operations: one table row or method per operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from blockwright.analysis.validate.operands import NO_RESULT, NO_RESULT_HELP, returns_value
from blockwright.codegen.link.elf_dynamic import DEFAULT_IMPORTS
from blockwright.codegen.llvm import (
    access,
    atomics,
    integers,
    late_results,
    mathlib,
    neighbors,
    objects,
    packed,
    shared_library,
    types,
)
from blockwright.codegen.llvm.real import Real
from blockwright.codegen.llvm.values import Value, element_of, int_const, lanes_of, suffix, vector
from blockwright.intrin.hardware import PRODUCTS
from blockwright.ir import (
    BufferLoad,
    Builtin,
    Call,
    DType,
    Expr,
    FloatImm,
    IntImm,
    StringImm,
    const,
    is_atomic,
    register_op,
)
from blockwright.ir import expr as E
from blockwright.support import BuildError
from blockwright.target.scopes import TILE_SCOPE

if TYPE_CHECKING:
    from blockwright.codegen.llvm.emitter import FunctionEmitter
    from blockwright.codegen.llvm.expr import ExprEmitter

for _row in (
    Builtin("call_llvm_pure_intrin", "pure", -1, result="given"),
    Builtin("call_llvm_intrin", "effect", -1, result="given"),
    Builtin("llvm_lookup_intrinsic_id", "pure", 1, result="given"),
):
    register_op(_row)


def call(c: ExprEmitter, expr: Call) -> Value:
    """Emit a builtin call and return its value."""
    method = _METHODS.get(expr.op)
    if expr.op in _ON_INTEGERS and not expr.args[0].dtype.is_int and not expr.args[0].dtype.is_bool:
        raise BuildError(
            f"{expr.op} of {expr.args[0].dtype}",
            code="BW611",
            help="convert to an integer type first, with T.Cast or T.reinterpret",
        )
    if method is not None:
        return method(c, expr)
    if is_atomic(expr):
        return atomics.update(c, expr, _place_of(c, expr.args[0]))
    if expr.op in mathlib.NAMES:
        return _elementwise(c, expr)
    raise BuildError(
        f"operation {expr.op!r} is not supported on this target",
        code="BW601",
        help="lower it to operations of ir.op first",
    )


# -------------------------------------------------------------------- elementwise
def _elementwise(c: ExprEmitter, expr: Call) -> Value:
    dtype = expr.args[0].dtype
    args = [c.value(a) for a in expr.args]
    if dtype.is_int:
        return _elementwise_int(c, expr, dtype, args)
    if not dtype.is_float:
        raise BuildError(f"{expr.op} of {dtype}", code="BW611", help="cast to a float type first")
    narrow = types.is_narrow(dtype)
    if narrow:
        args = [types.widen(c.e, a, dtype) for a in args]
    if expr.op == "pow":
        result = _power(c, args, expr.args[1])
    else:
        result = mathlib.apply(c.e, expr.op, args)
    return types.narrow(c.e, result, dtype) if narrow else result


def _elementwise_int(c: ExprEmitter, expr: Call, dtype: DType, args: list[Value]) -> Value:
    value = args[0]
    if expr.op == "pow":
        return integers.power(c.e, value, args[1], dtype, integers.constant_of(expr.args[1]))
    if expr.op == "abs":
        if dtype.kind == "uint":
            return value
        return c.e.intrinsic(f"abs.{suffix(value.type)}", value.type, value, int_const(0, "i1"))
    if expr.op in ("floor", "ceil", "round", "trunc", "nearbyint"):
        return value
    raise BuildError(f"{expr.op} of {dtype}", code="BW611", help="cast to a float type first")


def _power(c: ExprEmitter, args: list[Value], exponent: Expr) -> Value:
    """Expand small integer powers to products, which round at most twice."""
    while isinstance(exponent, E.Broadcast):
        exponent = exponent.value
    known = exponent.value if isinstance(exponent, FloatImm) else None
    x = Real(c.e, args[0])
    if known == 2.0:
        return (x * x).v
    if known == 3.0:
        return (x * x * x).v
    return mathlib.apply(c.e, "pow", args)


def _nextafter(c: ExprEmitter, expr: Call) -> Value:
    dtype = expr.args[0].dtype
    if not dtype.is_float:
        raise BuildError(f"nextafter of {dtype}", code="BW611", help="cast to a float type first")
    x, y = (c.value(a) for a in expr.args)
    return neighbors.nextafter(c.e, x, y, dtype)


def _float_test(c: ExprEmitter, expr: Call) -> Value:
    """isnan, isinf, isfinite; integers are always finite."""
    dtype = expr.args[0].dtype
    value = c.value(expr.args[0])
    if not dtype.is_float:
        return int_const(int(expr.op == "isfinite"), vector("i1", dtype.lanes))
    if types.is_narrow(dtype):
        value = types.widen(c.e, value, dtype)
    x = Real(c.e, value)
    if expr.op == "isnan":
        return x.test("uno", x)
    return abs(x).test("oeq" if expr.op == "isinf" else "olt", float("inf"))


def _fma(c: ExprEmitter, expr: Call) -> Value:
    dtype = expr.args[0].dtype
    if dtype.is_bool:
        raise BuildError("fma of bool", code="BW611", help="convert to a number type first")
    args = [c.value(a) for a in expr.args]
    if dtype.is_int:
        return c.e.binary("add", c.e.binary("mul", args[0], args[1]), args[2])
    if types.is_narrow(dtype):
        wide = [types.widen(c.e, a, dtype) for a in args]
        return types.narrow(c.e, c.e.overloaded("fma", *wide), dtype)
    return c.e.overloaded("fma", *args)


def _bitwise(c: ExprEmitter, expr: Call) -> Value:
    name = expr.op.removeprefix("bitwise_")
    return c.e.binary(name, c.value(expr.args[0]), c.value(expr.args[1]))


def _bitwise_not(c: ExprEmitter, expr: Call) -> Value:
    value = c.value(expr.args[0])
    return c.e.binary("xor", value, int_const(1 if expr.dtype.is_bool else -1, value.type))


def _shift(c: ExprEmitter, expr: Call) -> Value:
    a, b = expr.args
    amount = integers.constant_of(b)
    left = expr.op == "shift_left"
    return integers.shift(c.e, left, c.value(a), c.value(b), a.dtype, amount)


def _popcount(c: ExprEmitter, expr: Call) -> Value:
    return c.e.overloaded("ctpop", c.value(expr.args[0]))


def _clz(c: ExprEmitter, expr: Call) -> Value:
    value = c.value(expr.args[0])
    return c.e.intrinsic(f"ctlz.{suffix(value.type)}", value.type, value, int_const(0, "i1"))


def _likely(c: ExprEmitter, expr: Call) -> Value:
    return c.value(expr.args[0])


def _assume(c: ExprEmitter, expr: Call) -> Value:
    """A hint for the compiler; emits no code."""
    return int_const(0, "i32")


def _undef(c: ExprEmitter, expr: Call) -> Value:
    """An arbitrary value; zero, so that results are reproducible."""
    return c.value(const(0, expr.dtype))


def _if_then_else(c: ExprEmitter, expr: Call) -> Value:
    return c.lazy(*expr.args)


def _reinterpret(c: ExprEmitter, expr: Call) -> Value:
    value, new = c.value(expr.args[0]), types.value_type(expr.dtype)
    if "ptr" in (element_of(value.type), element_of(new)):
        return types.cast(c.e, value, expr.args[0].dtype, expr.dtype)
    return c.e.bitcast(value, new)


def _dot(c: ExprEmitter, expr: Call) -> Value:
    """A product of lanes or matrices: instructions of the target, or elementary operations."""
    dot, lanes = PRODUCTS[expr.op], expr.dtype.lanes
    if dot.in_tiles:
        raise BuildError(
            f"{dot.name} multiplies tile registers, not vectors",
            code="BW637",
            help=f"let its operands and its result be buffers of scope {TILE_SCOPE!r}",
        )
    found = dot.form(lanes, c.e.module.target.feature_set)
    if found is None:
        return c.value(dot.meaning(*expr.args))
    width, form = found
    total, a, b = (c.value(arg) for arg in expr.args)
    parts: list[Value] = []
    for start in range(0, lanes, width):
        first, count = start * dot.ratio, width * dot.ratio
        factors = [_slice(c.e, v, first, count) for v in (a, b)]
        sums = _slice(c.e, total, start, width)
        factors = [c.e.bitcast(v, vector(form.element, count)) for v in factors]
        pair = factors[::-1] if form.swapped else factors
        if form.adds:
            sums = c.e.intrinsic(form.intrinsic, sums.type, sums, *pair)
            parts.append(c.e.intrinsic(form.then, sums.type, sums, *pair) if form.then else sums)
        else:
            products = c.e.intrinsic(form.intrinsic, sums.type, *pair)
            parts.append(c.e.binary("add", sums, products))
    return _joined(c.e, parts)


def _slice(e: FunctionEmitter, value: Value, start: int, count: int) -> Value:
    """Consecutive lanes of a vector."""
    if count == lanes_of(value.type):
        return value
    return e.shuffle(value, value, range(start, start + count))


def _joined(e: FunctionEmitter, parts: list[Value]) -> Value:
    """One vector of vectors of equal length."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        count = 2 * lanes_of(parts[0].type)
        if len(parts) % 2:
            return _appended(e, parts)
        parts = [e.shuffle(x, y, range(count)) for x, y in pairs]
    return parts[0]


def _appended(e: FunctionEmitter, parts: list[Value]) -> Value:
    """Concatenate an odd number of vectors; the last one is padded to the length of the others."""
    front, back = _joined(e, parts[:-1]), parts[-1]
    long, short = lanes_of(front.type), lanes_of(back.type)
    padded = e.shuffle(back, back, [*range(short), *[0] * (long - short)])
    return e.shuffle(front, padded, range(long + short))


# -------------------------------------------------------------------- reductions
def _reduce(c: ExprEmitter, expr: Call) -> Value:
    """Reduce lanes in a tree: a fixed order, the same on every machine."""
    dtype = expr.args[0].dtype
    value = c.value(expr.args[0])
    kind = expr.op.removeprefix("vector_reduce_")
    if dtype.is_int:
        order = {"add": "add", "min": "smin", "max": "smax"}[kind]
        if dtype.kind == "uint":
            order = order.replace("s", "u", 1) if kind != "add" else order
        if dtype.lanes == 1:
            return value
        return c.e.intrinsic(
            f"vector.reduce.{order}.{suffix(value.type)}", element_of(value.type), value
        )
    if types.is_narrow(dtype):
        wide = types.widen(c.e, value, dtype)
        return types.narrow(c.e, _by_halves(c, wide, kind), dtype.element)
    return _by_halves(c, value, kind)


def _by_halves(c: ExprEmitter, value: Value, kind: str) -> Value:
    def combine(a: Value, b: Value) -> Value:
        if kind == "add":
            return c.e.binary("fadd", a, b)
        return c.extremum("olt" if kind == "min" else "ogt", a, b)

    nothing = Value(value.type, "poison")
    while (lanes := lanes_of(value.type)) > 1:
        half = lanes // 2
        low = c.e.shuffle(value, nothing, range(half))
        high = c.e.shuffle(value, nothing, range(half, 2 * half))
        joined = combine(low, high)
        if lanes % 2:
            last = c.e.extract(value, lanes - 1)
            first = combine(c.e.extract(joined, 0), last)
            joined = c.e.insert(joined, first, 0)
        value, nothing = joined, Value(joined.type, "poison")
    return value


# -------------------------------------------------------------------- memory
def _address_of(c: ExprEmitter, expr: Call) -> Value:
    (place,) = expr.args
    if not isinstance(place, BufferLoad):
        raise BuildError(
            "address_of takes a buffer element",
            code="BW615",
            help="write T.address_of(buffer[i, j])",
        )
    return access.address(c, place)


def _place_of(c: ExprEmitter, expr: Expr) -> Value:
    return access.address(c, expr) if isinstance(expr, BufferLoad) else c.value(expr)


def _prefetch(c: ExprEmitter, expr: Call) -> Value:
    """prefetch(address, write = 0, locality = 3)."""
    extra = [integers.constant_of(a) or 0 for a in expr.args[1:3]]
    write, locality = (extra + [0, 3][len(extra) :])[:2]
    c.e.prefetch_line(_place_of(c, expr.args[0]), write=write, locality=locality)
    return int_const(0, "i32")


def _constant_data(c: ExprEmitter, expr: Call) -> Value:
    symbol = constant_symbol(_text(expr.args[0]))
    c.e.module.external_data(symbol)
    return Value("ptr", f'@"{symbol}"')


def constant_symbol(name: str) -> str:
    """The symbol of a constant of the program."""
    return f"bw.const.{name}"


# -------------------------------------------------------------------- calls
_RUNTIME_PREFIX = "bw_"
"""Prefix of the functions of the library's own runtime code, such as `bw_clock`."""


def _text(expr: Expr) -> str:
    if isinstance(expr, StringImm):
        return expr.value
    raise BuildError(
        "the first argument of a call must be the name of the callee",
        code="BW615",
        help='write call_extern("name", …)',
    )


def _call_extern(c: ExprEmitter, expr: Call) -> Value:
    name, *rest = expr.args
    library, colon, symbol = _text(name).partition(":")
    if colon:
        return shared_library.call(c, library, symbol, rest, expr.dtype)
    if _text(name) not in DEFAULT_IMPORTS and not _text(name).startswith(_RUNTIME_PREFIX):
        raise BuildError(
            f"{expr.op} calls {_text(name)!r}, which is not a function that libraries are linked "
            "with",
            code="BW616",
            help="call a function of the C library, its math library or the FFI, or a function of "
            "the module by its name; call any other one with T.call_packed, after registering it "
            "with tvm_ffi.register_global_func",
        )
    args: list[Value] = []
    for arg in rest:
        value = c.value(arg)
        if arg.dtype.is_bool and arg.dtype.lanes == 1:
            value = c.e.convert("zext", value, "i32")
        args.append(value)
    result = types.value_type(expr.dtype)
    matches = c.e.call("i32" if result == "i1" else result, _text(name), *args)
    return c.e.compare("ne", matches, int_const(0, "i32")) if result == "i1" else matches


def _call_llvm(c: ExprEmitter, expr: Call) -> Value:
    """Call an LLVM intrinsic by its full name; write its `i1` constants as bool.

    Classic TIR uses an intrinsic identifier and a type count, which is not an operand.
    """
    name, *rest = expr.args
    if isinstance(name, Call) and name.op == "llvm_lookup_intrinsic_id":
        name = name.args[0]
        if rest and isinstance(rest[0], IntImm) and rest[0].dtype.kind == "uint":
            rest = rest[1:]
    full = _text(name)
    args = [c.value(a) for a in rest]
    return c.e.intrinsic(full.removeprefix("llvm."), types.value_type(expr.dtype), *args)


def _call_global(c: ExprEmitter, expr: Call) -> Value:
    name, *rest = expr.args
    symbol = c.context.callees.get(_text(name))
    if symbol is None:
        known = ", ".join(sorted(c.context.callees)) or "none"
        raise BuildError(
            f"call of unknown function {_text(name)!r}",
            code="BW616",
            help=f"functions of the module: {known}",
        )
    if c.context.poll is not None:
        c.context.check(c.e.call("i32", "bw_poll", c.context.poll))
    args = [c.value(a) for a in rest]
    status = c.e.call("i32", f'"{symbol}"', *args)
    c.context.check(status)
    return status


def _call_packed(c: ExprEmitter, expr: Call) -> Value:
    name, *rest = expr.args
    return packed.call(c, _text(name), rest, expr.dtype)


def _print(c: ExprEmitter, expr: Call) -> Value:
    """Print values separated by spaces, then a newline, to standard output."""
    formats: list[str] = []
    args: list[Value] = []
    for arg in expr.args:
        if isinstance(arg, StringImm):
            formats.append(arg.value.replace("%", "%%"))
            continue
        lanes: list[str] = []
        value = c.value(arg)
        for lane in range(arg.dtype.lanes):
            one = c.e.extract(value, lane)
            mark, shown = _printable(c, one, arg.dtype.element)
            lanes.append(mark)
            args.append(shown)
        formats.append(lanes[0] if len(lanes) == 1 else f"[{', '.join(lanes)}]")
    text = c.e.module.string(" ".join(formats) + "\n")
    c.e.call("i32", "printf", text, *args, variadic="ptr")
    c.e.call("i32", "fflush", Value("ptr", "null"))  # keep the order with the caller's output
    return int_const(0, "i32")


def _printable(c: ExprEmitter, value: Value, dtype: DType) -> tuple[str, Value]:
    if dtype.is_handle:
        return "%p", value
    if dtype.is_float:
        return "%.9g", types.cast(c.e, value, dtype, DType("float", 64))
    if dtype.kind == "uint":
        return "%llu", types.cast(c.e, value, dtype, DType("uint", 64))
    return "%lld", types.cast(c.e, value, dtype, DType("int", 64))


def _ret(c: ExprEmitter, expr: Call) -> Value:
    if returns_value(expr):
        raise BuildError(NO_RESULT, code="BW617", help=NO_RESULT_HELP)
    c.context.leave(int_const(0, "i32"))
    return int_const(0, "i32")


def _jump(c: ExprEmitter, expr: Call) -> Value:
    """break and continue of the innermost loop; memory acquired inside it is released first."""
    if not c.e.loops:
        raise BuildError(
            f"{expr.op} outside a serial loop",
            code="BW618",
            help="parallel loops cannot be left early",
        )
    c.context.run_cleanups(c.context.loop_depths[-1])
    loop = c.e.loops[-1]
    c.e.branch(loop.exit if expr.op == "break" else loop.latch)
    return int_const(0, "i32")


_ON_INTEGERS = frozenset(
    "bitwise_and bitwise_or bitwise_xor bitwise_not shift_left shift_right popcount clz".split()
)
_METHODS: dict[str, Callable[[ExprEmitter, Call], Value]] = {
    "isnan": _float_test, "isinf": _float_test, "isfinite": _float_test, "fma": _fma,
    "nextafter": _nextafter,
    "bitwise_and": _bitwise, "bitwise_or": _bitwise, "bitwise_xor": _bitwise,
    "bitwise_not": _bitwise_not, "shift_left": _shift, "shift_right": _shift,
    "popcount": _popcount, "clz": _clz, "likely": _likely, "if_then_else": _if_then_else,
    "reinterpret": _reinterpret, "vector_reduce_add": _reduce, "vector_reduce_min": _reduce,
    "vector_reduce_max": _reduce, "address_of": _address_of, "prefetch": _prefetch,
    "constant_data": _constant_data, "call_extern": _call_extern,
    "call_pure_extern": _call_extern, "call_llvm_pure_intrin": _call_llvm,
    "call_llvm_intrin": _call_llvm, "call_global": _call_global, "call_packed": _call_packed,
    "assume": _assume, "undef": _undef, "print": _print, "ret": _ret, "break": _jump,
    "result_memory": late_results.result_memory, "result_size": late_results.result_size,
    "continue": _jump, "object_slot": objects.object_slot, "copy_object": objects.copy_object,
    "call_object": objects.call_object, "make_closure": objects.make_closure,
    "load_object": objects.load_object, "check_object": objects.check_object,
    "clear_object": objects.clear_object,
    **dict.fromkeys(PRODUCTS, _dot),
}  # fmt: skip
