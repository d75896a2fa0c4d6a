"""Check of operand counts and types of expressions and statements.

Node constructors check nothing. The functions of the dialect check their arguments, but
`T.call_intrin` builds any call, `A[0] and A[1]` any connective, and passes build nodes directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from blockwright import ir
from blockwright.analysis.kernels import axis_of
from blockwright.ir import DType, Expr
from blockwright.ir.op import OPS, result_type

MOST_LANES = 65535
"""Maximum lanes of a data type: DLPack stores the count in 16 bits."""

_SHIFTS = ("shift_left", "shift_right")
_BITS_OF_POINTER = 64


NO_RESULT = "a tensor program returns no value"
NO_RESULT_HELP = "write the result to an output buffer"


def returns_value(call: ir.Call) -> bool:
    """Whether a call of `ret` returns a value; 0 is the status of success."""
    return call.op == "ret" and bool(call.args) and not ir.is_const_int(call.args[0], 0)


RETURNS_HELP = "guard the rest of the statements with `if`"


def returns_from(var: ir.Var) -> str:
    """The message about a return from a loop whose other iterations may have run, or not."""
    return f"the program returns inside loop {var.name}, whose iterations are concurrent"


_CONCURRENT = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED, ir.ForKind.THREAD_BINDING)


def concurrent_variable(node: ir.Stmt) -> ir.Var | None:
    """The variable of a loop or launch whose iterations are concurrent; None for others."""
    if isinstance(node, ir.For):
        return node.loop_var if node.kind in _CONCURRENT else None
    axis = axis_of(node)
    return None if axis is None else axis.var


class Types:
    """Memoized types of expressions; follows the first operands of operators iteratively."""

    def __init__(self) -> None:
        self._known: dict[Expr, DType] = {}

    def __call__(self, node: Expr) -> DType:
        known, chain, here = self._known, list[Expr](), node
        while isinstance(here, ir.BinaryOp) and here not in known:
            chain.append(here)
            here = here.a
        result = known.get(here)
        if result is None:
            result = here.dtype
        for passed in chain:
            known[passed] = result
        return result

    def mismatch(self, node: ir.Node) -> str | None:
        """Why the operands of a node are invalid; None if they are valid."""
        rule = _RULES.get(type(node))
        return None if rule is None else rule(node, self)


def _arithmetic(node: Any, types: Types) -> str | None:
    a, b = types(node.a), types(node.b)
    if a is not b:
        return f"`{node.symbol}` combines {a} with {b}"
    if a.is_handle or (a.is_bool and not isinstance(node, (ir.Min, ir.Max))):
        return f"`{node.symbol}` is not defined for {a}"
    return None


def _comparison(node: Any, types: Types) -> str | None:
    a, b = types(node.a), types(node.b)
    return None if a is b else f"`{node.symbol}` compares {a} with {b}"


def _connective(node: Any, types: Types) -> str | None:
    operands = (node.a,) if isinstance(node, ir.Not) else (node.a, node.b)
    result = [types(operand) for operand in operands]
    word = type(node).__name__.lower()
    for kind in result:
        if not kind.is_bool:
            return f"an operand of `{word}` is {kind}, not bool"
    if result[0] is not result[-1]:
        return f"`{word}` combines {result[0]} with {result[-1]}"
    return None


def _select(node: Any, types: Types) -> str | None:
    a, b = types(node.true_value), types(node.false_value)
    return _choice("T.Select", types(node.condition), a, b)


def _choice(word: str, condition: DType, a: DType, b: DType) -> str | None:
    if not condition.is_bool:
        return f"the condition of {word} is {condition}, not bool"
    if a is not b:
        return f"{word} chooses between {a} and {b}"
    if condition.lanes not in (1, a.lanes):
        return f"{word} chooses between values of {a.lanes} lanes by {condition.lanes} conditions"
    return None


def _cast(node: Any, types: Types) -> str | None:
    kind = types(node.value)
    if kind.lanes != node.type.lanes:
        return f"a cast of {kind} to {node.type} changes the number of lanes"
    if kind.is_handle != node.type.is_handle:
        return f"{kind} does not convert to {node.type}"
    return None


def _let(node: Any, types: Types) -> str | None:
    kind = types(node.value)
    if kind is node.var.dtype:
        return None
    return f"{node.var.name} is {node.var.dtype}, and its value is {kind}"


def _lanes(node: Any, types: Types) -> str | None:
    if not 0 < node.lanes <= MOST_LANES:
        return f"a vector has 1 to {MOST_LANES} lanes, not {node.lanes}"
    if isinstance(node, ir.Broadcast):
        return None if types(node.value).lanes == 1 else "T.Broadcast repeats a vector"
    base, stride = types(node.base), types(node.stride)
    if not (_is_number(base) and _is_number(stride)):
        return f"base and stride of T.Ramp are {base} and {stride}, not integers"
    return None


def _shuffled(node: Any, types: Types) -> str | None:
    lanes = sum(types(vector).lanes for vector in node.vectors)
    for index in node.indices:
        if not 0 <= index < lanes:
            return f"T.Shuffle picks lane {index} of {lanes}"
    return None


def _declared(node: Any, types: Types) -> str | None:
    kind = types(node.source)
    if kind.is_handle:
        return None
    return f"buffer {node.buffer.name} is declared on a {kind}, not on a pointer"


def _is_number(kind: DType) -> bool:
    return kind.is_int and kind.lanes == 1


def _call(node: ir.Call, types: Types) -> str | None:
    row = OPS.get(node.op)
    if row is None:
        return None  # operation of another compiler, nothing is known about it
    if ir.is_atomic(node):
        return None  # checked by `atomic_problem`
    count = len(node.args)
    if row.arity not in (-1, count):
        return f"{node.op} takes {row.arity} argument{'s' * (row.arity != 1)}, got {count}"
    if node.op == "tensor":
        return ir.tensor_problem(node.args[0])
    kinds = [types(arg) for arg in node.args]
    if node.op == "if_then_else":
        wrong = _choice("T.if_then_else", *kinds)
        if wrong is None and node.dtype is not kinds[1]:
            wrong = f"T.if_then_else of {kinds[1]} is stated to be {node.dtype}"
        return wrong
    if node.op == "reinterpret":
        return _reinterpreted(kinds[0], node.dtype)
    if node.op == "assume":
        return _condition("T.assume", kinds[0])
    if row.operands:
        return _fixed(node, kinds, row)
    return _lane_wise(node, kinds) if row.elementwise else None


def _fixed(node: ir.Call, kinds: Sequence[DType], row: ir.Builtin) -> str | None:
    """Operands of a hardware operation: element types and numbers of lanes are fixed."""
    lanes = kinds[0].lanes
    if lanes % row.together:
        return f"argument 0 of {node.op} has {lanes} lanes, not a multiple of {row.together}"
    for position, (kind, (element, count)) in enumerate(zip(kinds, row.operands, strict=True)):
        wanted = ir.dtype_of(element).with_lanes(lanes * count)
        if kind is not wanted:
            return f"argument {position} of {node.op} is {kind}, not {wanted}"
    if node.dtype is not kinds[0]:
        return f"{node.op} of {kinds[0]} is stated to be {node.dtype}"
    return None


def _lane_wise(node: ir.Call, kinds: Sequence[DType]) -> str | None:
    """Operands must have one type; a shift distance may have any integer type."""
    first = kinds[0]
    for kind in kinds[1:]:
        fits = node.op in _SHIFTS and first.is_int and kind.is_int and kind.lanes == first.lanes
        if kind is not first and not fits:
            return f"{node.op} combines {first} with {kind}"
    wanted = result_type(OPS[node.op], first)
    if node.dtype is not wanted and OPS[node.op].result != "given":
        return f"{node.op} of {first} is {wanted}, but is stated to be {node.dtype}"
    return None


def _reinterpreted(old: DType, new: DType) -> str | None:
    if _bits(old) == _bits(new):
        return None
    return f"T.reinterpret keeps the bits: {old} has {_bits(old)}, {new} has {_bits(new)}"


def _bits(kind: DType) -> int:
    return (_BITS_OF_POINTER if kind.is_handle else kind.bits) * kind.lanes


def _access(node: Any, types: Types) -> str | None:
    name = node.buffer.name
    for axis, index in enumerate(node.indices):
        kind = types(index)
        if not kind.is_int:
            return f"index {axis} of {name} is {kind}, not an integer"
    if isinstance(node, ir.BufferStore):
        kind = types(node.value)
        if kind.element is not node.buffer.dtype.element:
            return f"a value of {kind} is stored to {name}, which holds {node.buffer.dtype}"
    return None


def _condition(word: str, kind: DType) -> str | None:
    return None if kind.is_bool and kind.lanes == 1 else f"the condition of {word} is {kind}"


def _guarded(node: Any, types: Types) -> str | None:
    words = {ir.IfThenElse: "an `if`", ir.While: "a `while`", ir.AssertStmt: "an `assert`"}
    return _condition(words[type(node)], types(node.condition))


def _loop(node: Any, types: Types) -> str | None:
    for bound in (node.min, node.extent):
        if not _is_number(types(bound)):
            return f"a bound of loop {node.loop_var.name} is {types(bound)}, not an integer"
    return None


def buffer_mismatch(buffer: ir.Buffer) -> str | None:
    """Why the extents or strides of a buffer are invalid; None if they are valid."""
    if buffer.strides and len(buffer.strides) != buffer.ndim:
        return (
            f"buffer {buffer.name} has {buffer.ndim} dimensions and {len(buffer.strides)} strides"
        )
    for what, sizes in (("extent", buffer.shape), ("stride", buffer.strides)):
        for size in sizes:
            if not _is_number(size.dtype):
                return f"the {what} {size} of buffer {buffer.name} is {size.dtype}, not an integer"
    return None


def extent_problems(buffer: ir.Buffer) -> Iterator[tuple[str, str]]:
    """Errors of constant extents, with their codes: negative, or too many bytes for 63 bits."""
    extents = [ir.const_int(n) for n in buffer.shape]
    if any(n is not None and n < 0 for n in extents):
        yield "BW250", f"an extent of buffer {buffer.name} is negative"
    count = math.prod(n for n in extents if n is not None)
    if None not in extents and count * buffer.dtype.nbytes * buffer.dtype.lanes >= 1 << 63:
        yield (
            "BW255",
            f"buffer {buffer.name} has {count} elements, whose size in bytes exceeds 63 bits",
        )


def _realize(node: Any, types: Types) -> str | None:
    block = node.block
    for iterator, value in zip(block.iter_vars, node.iter_values, strict=False):
        if not _is_number(types(value)):
            what = f"iterator {iterator.var.name} of block {block.name}"
            return f"the value of {what} is {types(value)}, not an integer"
    return _condition(f"block {block.name}", types(node.predicate))


_RULES: dict[type[ir.Node], Callable[[Any, Types], str | None]] = {
    **dict.fromkeys(
        (ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Mod, ir.FloorDiv, ir.FloorMod), _arithmetic
    ),
    **dict.fromkeys((ir.Min, ir.Max), _arithmetic),
    **dict.fromkeys((ir.EQ, ir.NE, ir.LT, ir.LE, ir.GT, ir.GE), _comparison),
    **dict.fromkeys((ir.And, ir.Or, ir.Not), _connective),
    **dict.fromkeys((ir.Let, ir.LetStmt), _let),
    **dict.fromkeys((ir.Ramp, ir.Broadcast), _lanes),
    **dict.fromkeys((ir.BufferLoad, ir.BufferStore), _access),
    **dict.fromkeys((ir.IfThenElse, ir.While, ir.AssertStmt), _guarded),
    ir.Select: _select,
    ir.Shuffle: _shuffled,
    ir.DeclBuffer: _declared,
    ir.Cast: _cast,
    ir.Call: _call,
    ir.For: _loop,
    ir.BlockRealize: _realize,
}
