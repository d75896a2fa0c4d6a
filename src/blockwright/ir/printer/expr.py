"""Printer of expressions, buffers and attribute values in the `T` dialect.

The printed text parses to exactly the same node. An integer literal states its type unless the type
is int32 or that of the other operand, which the parser gives to plain numbers. Two plain literals
are never operands of one operation, because Python would fold them. In index positions (`index`)
the default is the index type of the function instead of int32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeGuard, cast

import numpy as np

from blockwright.ir import expr as E
from blockwright.ir.buffer import Buffer, BufferRegion, IterVar, MatchBufferRegion, Range
from blockwright.ir.dtype import INT32, DType, dtype_of
from blockwright.ir.expr import Expr, FloatImm, IntImm, StringImm, Var
from blockwright.ir.node import Node
from blockwright.ir.op import OPS, result_type
from blockwright.ir.printer.writer import NameScope, Writer, index_literal, mark
from blockwright.ir.reducer import CommReducer
from blockwright.ir.structural import structural_equal
from blockwright.support.kinds import is_huge

_INFIX: dict[type[Expr], tuple[str, int]] = {
    E.Or: ("or", 1), E.And: ("and", 2),
    E.EQ: ("==", 4), E.NE: ("!=", 4), E.LT: ("<", 4), E.LE: ("<=", 4), E.GT: (">", 4),
    E.GE: (">=", 4),
    E.Add: ("+", 9), E.Sub: ("-", 9), E.Mul: ("*", 10), E.Div: ("/", 10),
    E.FloorDiv: ("//", 10), E.FloorMod: ("%", 10),
}  # fmt: skip
Array = np.ndarray[Any, Any]
_UNARY, _ATOM = 11, 13
SPECIAL_CALLS = frozenset({"break", "continue"})


_STATED_TYPES = {
    "address_of": "handle",
    "constant_data": "handle",
    "result_memory": "handle",
    "result_size": "int64",
    "tensor": "handle",
    "object_slot": "handle",
    "object_value": "handle",
    "shape_of": "int64",
}


def implied_type(op: str, args: Sequence[Expr]) -> DType | None:
    """Result type of a builtin call without an explicit `dtype`; None for unknown operations.

    Parser and printer share this rule, so a type is printed exactly when it is needed.
    """
    row = OPS.get(op)
    if row is None or op.startswith("call_llvm_"):  # these state their type as first argument
        return None
    if op == "if_then_else":
        return args[1].dtype
    if row.result != "given":
        return result_type(row, args[0].dtype) if args else None
    if op.startswith("vector_reduce_"):
        return args[0].dtype.element
    if op.startswith("atomic_"):
        return args[1].dtype if len(args) > 1 else None
    return dtype_of(_STATED_TYPES.get(op, "int32"))


def is_literal(node: Any) -> TypeGuard[IntImm]:
    """Whether a node is an integer constant in range of its type, printable as a plain number."""
    return (
        isinstance(node, IntImm)
        and node.type.is_int
        and node.type.min_value <= node.value <= node.type.max_value
    )


def _has_function(call: E.Call) -> bool:
    """Whether `T.<op>(…)` parses to this call, given that it matches the types of its operands."""
    mixed = OPS[call.op].elementwise and len({arg.dtype for arg in call.args}) > 1
    lazy = call.op == "if_then_else" and call.type is not call.args[1].dtype
    return call.op.isidentifier() and not mixed and not lazy


class ExprPrinter:
    """Prints expressions; `names` maps every variable and buffer to its printed name."""

    expressions: ClassVar[dict[type[Node], Callable[[Any, Any], tuple[str, int]]]] = {}

    def __init__(self, marks: Iterable[Node] = (), constants: dict[str, Any] | None = None) -> None:
        self.names = NameScope()
        self.members: dict[str, str] = {}  # the names that the functions of the module print by
        self.out = Writer()
        self.marks = {id(node) for node in marks}
        self.constants: dict[str, Any] = {} if constants is None else constants

    def marked(self, node: Node, text: str) -> str:
        return mark(text) if self.marks and id(node) in self.marks else text

    # ------------------------------------------------------------------------------ entry points
    def expr(self, node: Expr, level: int = 0) -> str:
        """Text of an expression, parenthesized if its precedence is below `level`."""
        text, strength = self._expr(node)
        return f"({text})" if strength < level else text

    def exprs(self, nodes: Iterable[Expr]) -> str:
        return ", ".join(self.expr(node) for node in nodes)

    def typed(self, node: Expr) -> str:
        """Text of an expression where a plain Python number would not become an expression."""
        if is_literal(node):
            return self.marked(node, f"T.{node.type}({node.value})")
        if isinstance(node, StringImm):
            return f"T.StringImm({quote(node.value)})"
        return self.expr(node)

    def like(self, node: Expr, dtype: DType, level: int = 0) -> str:
        """Text of an expression where a plain number has type `dtype`."""
        if not is_literal(node):
            return self.expr(node, level)
        return self.marked(node, str(node.value)) if node.type is dtype else self.typed(node)

    def index(self, node: Expr) -> str:
        """Text of an expression where a plain number has the index type of the function."""
        if not is_literal(node):
            return self.expr(node)
        return self.marked(node, index_literal(node.value, node.type))

    def matched(self, *nodes: Expr) -> list[str]:
        """Text of operands of one type; literals are plain if some operand is not a literal."""
        partner = next((node for node in nodes if not is_literal(node)), None)
        if partner is not None:
            return [self.like(node, partner.dtype) for node in nodes]
        if all(node.dtype is INT32 for node in nodes):
            return [self.expr(node) for node in nodes]
        return [self.typed(nodes[0]), *(self.like(node, nodes[0].dtype) for node in nodes[1:])]

    def matched_indices(self, *nodes: Expr) -> list[str]:
        """Like `matched`, but if all operands are literals they default to the index type."""
        first, *others = nodes
        if all(is_literal(node) and node.dtype is first.dtype for node in nodes):
            return [self.index(first), *(self.like(node, first.dtype) for node in others)]
        return self.matched(*nodes)

    def index_tuple(self, nodes: Iterable[Expr]) -> str:
        items = [self.index(node) for node in nodes]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def _expr(self, node: Expr) -> tuple[str, int]:
        if type(node) in _INFIX and not (isinstance(node, E.Div) and not node.dtype.is_float):
            return self._infix(node)
        method = self.expressions.get(type(node))
        if method is None:
            return f"<{type(node).__name__}>", _ATOM
        text, strength = method(self, node)
        return self.marked(node, text), strength

    def _infix(self, node: Any) -> tuple[str, int]:
        """Print infix operators; iterative, because left-leaning chains can be thousands deep."""
        spine: list[Any] = []
        while type(node) in _INFIX and not (isinstance(node, E.Div) and not node.dtype.is_float):
            spine.append(node)
            node = node.a
        text, strength = self._expr(node)
        for op in reversed(spine):
            symbol, level = _INFIX[type(op)]
            left_level = level + 1 if isinstance(op, E.CompareOp) else level
            if is_literal(op.a):
                fixed = is_literal(op.b) and op.a.dtype is op.b.dtype
                text, strength = self.typed(op.a) if fixed else self.like(op.a, op.b.dtype), _ATOM
            left = f"({text})" if strength < left_level else text
            text = self.marked(op, f"{left} {symbol} {self.like(op.b, op.a.dtype, level + 1)}")
            strength = level
        return text, strength

    # --------------------------------------------------------------------------------- leaf nodes
    def var(self, node: Var) -> str:
        return self.names.of(node, node.name)

    def _var(self, node: Var) -> tuple[str, int]:
        return self.var(node), _ATOM

    def _int(self, node: IntImm) -> tuple[str, int]:
        if node.type.is_bool:
            return f"T.bool({bool(node.value)})", _ATOM
        if is_literal(node) and node.type is INT32:
            return str(node.value), _ATOM if node.value >= 0 else _UNARY
        return f"T.{node.type}({node.value})", _ATOM

    def _float(self, node: FloatImm) -> tuple[str, int]:
        value = repr(node.value) if math.isfinite(node.value) else f'"{node.value}"'
        return f"T.{node.type}({value})", _ATOM

    def _string(self, node: StringImm) -> tuple[str, int]:
        return quote(node.value), _ATOM

    # ------------------------------------------------------------------------------ compound nodes
    def _cast(self, node: E.Cast) -> tuple[str, int]:
        return f'T.Cast("{node.type}", {self.expr(node.value)})', _ATOM

    def _not(self, node: E.Not) -> tuple[str, int]:
        return f"not {self.expr(node.a, 3)}", 3

    def _function(self, name: str, *args: Expr) -> tuple[str, int]:
        """A call with operands of one type; if all are literals, the first states its type."""
        if all(map(is_literal, args)):
            texts = [self.typed(args[0]), *(self.like(a, args[0].dtype) for a in args[1:])]
        else:
            texts = self.matched(*args)
        return f"T.{name}({', '.join(texts)})", _ATOM

    def _binary_call(self, node: E.BinaryOp) -> tuple[str, int]:
        names: dict[type[E.BinaryOp], str] = {
            E.Min: "min", E.Max: "max", E.Div: "truncdiv", E.Mod: "truncmod"
        }  # fmt: skip
        return self._function(names[type(node)], node.a, node.b)

    def _select(self, node: E.Select) -> tuple[str, int]:
        sides = self.matched(node.true_value, node.false_value)
        return f"T.Select({', '.join([self.expr(node.condition), *sides])})", _ATOM

    def _let(self, node: E.Let) -> tuple[str, int]:
        value = self.expr(node.value)
        with self.names.scope():
            name = self.names.define(node.var, node.var.name)
            return f"T.Let({self.expr(node.body)}, where={{{name}: {value}}})", _ATOM

    def _load(self, node: E.BufferLoad) -> tuple[str, int]:
        name = self.buffer(node.buffer)
        if node.predicate is not None:
            where = self.expr(node.predicate)
            return f"{name}.vload([{self.places(node)}], predicate={where})", _ATOM
        return f"{name}[{self.places(node) or '()'}]", _ATOM

    def _ramp(self, node: E.Ramp) -> tuple[str, int]:
        base, stride = self.matched_indices(node.base, node.stride)
        return f"T.ramp({base}, {stride}, {node.lanes})", _ATOM

    def _broadcast(self, node: E.Broadcast) -> tuple[str, int]:
        return f"T.broadcast({self.expr(node.value)}, {node.lanes})", _ATOM

    def _shuffle(self, node: E.Shuffle) -> tuple[str, int]:
        return f"T.shuffle([{self.exprs(node.vectors)}], {_repeated(node.indices)})", _ATOM

    def _call(self, node: E.Call) -> tuple[str, int]:
        default = implied_type(node.op, node.args)
        if default is None or node.op in SPECIAL_CALLS or not _has_function(node):
            rest = f", {self.exprs(node.args)}" if node.args else ""
            return f'T.call_intrin("{node.type}", {quote(node.op)}{rest})', _ATOM
        if node.op == "if_then_else":
            args = ", ".join([self.expr(node.args[0]), *self.matched(*node.args[1:])])
        elif OPS[node.op].elementwise and node.args:
            args = ", ".join(self.matched(*node.args))
        else:
            args = self.exprs(node.args)
        if node.type is not default:
            args += f'{", " if args else ""}dtype="{node.type}"'
        return f"T.{node.op}({args})", _ATOM

    # ------------------------------------------------------------------------ buffers and regions
    def buffer(self, node: Buffer) -> str:
        return self.names.of(node, node.name)

    def places(self, access: Any) -> str:
        """Indices of a load or store; a plain number has the type of the dimension's extent."""
        shape = access.buffer.shape
        if len(shape) != len(access.indices):  # invalid program, but errors must be able to show it
            return self.exprs(access.indices)
        pairs = zip(access.indices, shape, strict=True)
        return ", ".join(self.like(index, extent.dtype) for index, extent in pairs)

    def buffer_args(self, node: Buffer) -> str:
        """Shape, type and all properties that differ from the defaults."""
        parts = [self.index_tuple(node.shape), f'"{node.dtype}"']
        if node.strides:
            parts.append(f"strides={self.index_tuple(node.strides)}")
        if node.offset is not None:
            parts.append(f"elem_offset={self.index(node.offset)}")
        if node.scope != "global":
            parts.append(f"scope={quote(node.scope)}")
        if node.data_alignment:
            parts.append(f"align={node.data_alignment}")
        if node.offset_factor:
            parts.append(f"offset_factor={node.offset_factor}")
        if node.axis_separators:
            parts.append(f"axis_separators={list(node.axis_separators)}")
        return ", ".join(parts)

    def ends(self, start: Expr, extent: Expr) -> list[str]:
        """Start and end of [start, start + extent), from which the parser recovers `extent`."""
        return self.matched_indices(start, self._stop(start, extent))

    def _stop(self, start: Expr, extent: Expr) -> Expr:
        if isinstance(start, IntImm):
            if start.value == 0 and extent.dtype is start.type:
                return extent
            if isinstance(extent, IntImm):
                return IntImm(start.value + extent.value, start.type)
        if (
            isinstance(extent, E.Sub)
            and structural_equal(extent.b, start)
            and not (isinstance(extent.a, E.Add) and structural_equal(extent.a.a, start))
        ):
            return extent.a
        return E.Add(start, extent)

    def range_(self, node: Range, axis: Expr) -> str:
        """A range along a dimension of extent `axis`; plain numbers have the type of the extent."""
        one = isinstance(node.extent, IntImm) and node.extent.value == 1
        if one and node.extent.dtype is node.min.dtype:
            return self.like(node.min, axis.dtype)
        stop = self._stop(node.min, node.extent)
        if is_literal(node.min) and is_literal(stop):
            return f"{self.like(node.min, axis.dtype)}:{self.like(stop, node.min.dtype)}"
        return ":".join(self.matched(node.min, stop))

    def region(self, node: BufferRegion) -> str:
        shape = node.buffer.shape if len(node.buffer.shape) == len(node.region) else ()
        axes = shape or tuple(r.min for r in node.region)
        ranges = ", ".join(map(self.range_, node.region, axes))
        return self.marked(node, f"{self.buffer(node.buffer)}[{ranges or '()'}]")

    def match_region(self, node: MatchBufferRegion) -> str:
        return f"T.match_buffer({self.region(node.source)}, {self.buffer_args(node.buffer)})"

    def axis_args(self, node: Range, value: Expr | None) -> str:
        """Domain and value of a block iterator; literals have the type of the other operands."""
        low, stop = node.min, self._stop(node.min, node.extent)
        ends = [stop] if isinstance(low, IntImm) and low.value == 0 else [low, stop]
        given = [] if value is None else [value]
        texts = self.matched_indices(*ends, *given)
        domain = texts[0] if len(ends) == 1 else f"({texts[0]}, {texts[1]})"
        return ", ".join([domain, *texts[len(ends) :]])

    # ------------------------------------------------------------------------------ plain values
    def value(self, item: Any) -> str:
        """An attribute or annotation value: Python data, expressions, buffers, types."""
        if isinstance(item, Expr):
            return self.typed(item)
        if isinstance(item, Buffer):
            return self.buffer(item)
        if isinstance(item, BufferRegion):
            return self.region(item)
        if isinstance(item, IterVar):
            return self.names.of(item.var, item.var.name)
        if isinstance(item, DType):
            return f'T.dtype("{item}")'
        if isinstance(item, CommReducer):
            return self.reducer(item)
        if isinstance(item, str):
            return quote(item)
        if isinstance(item, float) and not math.isfinite(item):
            return f'float("{item}")'
        if isinstance(item, dict):
            entries = cast("Mapping[Any, Any]", item).items()
            return "{" + ", ".join(f"{self.value(k)}: {self._item(k, v)}" for k, v in entries) + "}"
        if isinstance(item, (list, tuple)):
            texts = [self.value(part) for part in cast("Sequence[Any]", item)]
            if isinstance(item, list):
                return f"[{', '.join(texts)}]"
            return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
        if isinstance(item, np.ndarray):
            return f"I.constant({quote(self.array_key(cast('Array', item), 'constant'))})"
        return hex(item) if isinstance(item, int) and is_huge(item) else repr(item)

    def reducer(self, node: CommReducer) -> str:
        """Text that declares a reducer, `T.comm_reducer(…)`."""
        with self.names.scope():
            names = [self.names.define(v, v.name) for v in (*node.lhs, *node.rhs)]
            result = self.exprs(node.result)
            combine = f"({result})" if len(node.result) > 1 else result
            created = f"lambda {', '.join(names)}: {combine}"
        identity = ", ".join(self.typed(e) for e in node.identity)
        return f"T.comm_reducer({created}, [{identity}])"

    def _item(self, key: Any, value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"I.constant({quote(self.array_key(cast('Array', value), str(key)))})"
        return self.value(value)

    def array_key(self, data: Array, name: str) -> str:
        """Key of an array that is stored outside the text, in `constants`."""
        table = self.constants
        for key, known in table.items():
            if known is data:
                return key
        base, count = name or "constant", 0
        name = base
        while name in table:
            count += 1
            name = f"{base}_{count}"
        table[name] = data
        return name


def quote(text: str) -> str:
    """A string literal, with double quotes unless that requires escapes."""
    literal = repr(text)
    return f'"{literal[1:-1]}"' if literal[0] == "'" and '"' not in text else literal


ExprPrinter.expressions.update({
    getattr(E, name): getattr(ExprPrinter, method)
    for name, method in {
        "Var": "_var", "IntImm": "_int", "FloatImm": "_float", "StringImm": "_string",
        "Cast": "_cast", "Not": "_not", "Min": "_binary_call", "Max": "_binary_call",
        "Div": "_binary_call", "Mod": "_binary_call", "Select": "_select", "Let": "_let",
        "BufferLoad": "_load", "Ramp": "_ramp", "Broadcast": "_broadcast", "Shuffle": "_shuffle",
        "Call": "_call",
    }.items()
})  # fmt: skip


def _repeated(numbers: tuple[int, ...]) -> str:
    """A list of numbers, as `[0, 1] * 8` where a pattern is repeated."""
    count = len(numbers)
    divisors = (p for p in range(1, count) if count % p == 0)
    period = next((p for p in divisors if numbers == numbers[:p] * (count // p)), count)
    listed = f"[{', '.join(map(str, numbers[:period]))}]"
    return listed if period == count else f"{listed} * {count // period}"
