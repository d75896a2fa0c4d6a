"""Format size expressions as the text stored in artefacts (`runtime.sizes` evaluates it)."""

from __future__ import annotations

from collections import Counter

from blockwright import ir
from blockwright.support import GraphError

_INFIX: dict[type[ir.Expr], str] = {
    ir.Add: "+", ir.Sub: "-", ir.Mul: "*", ir.FloorDiv: "//", ir.FloorMod: "%", ir.And: "and",
    ir.Or: "or", ir.EQ: "==", ir.NE: "!=", ir.LT: "<", ir.LE: "<=", ir.GT: ">", ir.GE: ">=",
}  # fmt: skip
_INFIX_CALLS = {
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "shift_left": "<<",
    "shift_right": ">>", "pow": "**",
}  # fmt: skip
_CALLS: dict[type[ir.Expr], str] = {ir.Min: "min", ir.Max: "max"}
_LONGEST = 2000  # characters of a text that repeats its common parts

_Form = tuple[str, tuple[int, ...]]
"""A format with one place for each operand, and the numbers of the operands."""


def size_text(size: ir.Expr) -> int | str:
    """Format a size: an int for a constant, else Python integer arithmetic over symbol names.

    A text longer than 2,000 characters names its common parts, since nested sizes, such as those
    of convolutions in turn, are graphs whose trees grow exponentially:

        (n - 10) // 5 + 1, named a:    a = (((n - 10) // 5) + 1); ((a // 2) * max(a, 64))
    """
    return size.value if isinstance(size, ir.IntImm) else _Text().of(size)


class _Text:
    """Size expressions by value number: equal parts have one number."""

    def __init__(self) -> None:
        self._forms: list[_Form] = []
        self._lengths: list[int] = []  # of the text without names
        self._numbers: dict[_Form, int] = {}
        self._known: dict[int, int] = {}  # id of a node → its number
        self._names: set[str] = set()

    def of(self, size: ir.Expr) -> str:
        root = self._number(size)
        if self._lengths[root] <= _LONGEST:
            return self._format(root, {})
        uses = Counter(part for _, parts in self._forms for part in parts)
        shared: dict[int, str] = {}
        lines: list[str] = []
        for number, (_, parts) in enumerate(self._forms):
            if parts and uses[number] > 1:
                text = self._format(number, shared)
                shared[number] = self._fresh(len(shared))
                lines.append(f"{shared[number]} = {text}")
        return "; ".join([*lines, self._format(root, shared)])

    def _fresh(self, number: int) -> str:
        name = f"_{number}"
        while name in self._names:
            name = f"_{name}"
        return name

    def _format(self, number: int, shared: dict[int, str]) -> str:
        if number in shared:
            return shared[number]
        form, parts = self._forms[number]
        return form.format(*(self._format(part, shared) for part in parts)) if parts else form

    def _number(self, node: ir.Expr) -> int:
        known = self._known.get(id(node))
        if known is None:
            form, operands = self._form(node)
            parts = tuple(self._number(operand) for operand in operands)
            known = self._numbers.setdefault((form, parts), len(self._forms))
            if known == len(self._forms):
                self._forms.append((form, parts))
                self._lengths.append(len(form) + sum(self._lengths[part] for part in parts))
            self._known[id(node)] = known
        return known

    def _form(self, node: ir.Expr) -> tuple[str, tuple[ir.Expr, ...]]:
        """The format of a node and its operands."""
        match node:
            case ir.IntImm(value=value):
                return str(value), ()
            case ir.FloatImm(value=value):
                return repr(value), ()
            case ir.Var(name=name):
                self._names.add(name)
                return name, ()
            case ir.Cast(value=value):
                return _conversion(node, value), (value,)
            case ir.Div(a=a, b=b):
                return "({} / {})" if node.dtype.is_float else "truncdiv({}, {})", (a, b)
            case ir.BinaryOp(a=a, b=b) | ir.CompareOp(a=a, b=b) if type(node) in _INFIX:
                return f"({{}} {_INFIX[type(node)]} {{}})", (a, b)
            case ir.BinaryOp(a=a, b=b) if type(node) in _CALLS:
                return f"{_CALLS[type(node)]}({{}}, {{}})", (a, b)
            case ir.And(a=a, b=b) | ir.Or(a=a, b=b):
                return f"({{}} {_INFIX[type(node)]} {{}})", (a, b)
            case ir.Not(a=a):
                return "(not {})", (a,)
            case ir.Call(op=op, args=(a, b)) if op in _INFIX_CALLS:
                return f"({{}} {_INFIX_CALLS[op]} {{}})", (a, b)
            case ir.Call(op="sqrt" | "abs" as op, args=(a,)):
                return f"{op}({{}})", (a,)
            case ir.Call(op="bitwise_not", args=(a,)):
                return "(-1 - {})", (a,)
            case ir.Call(op="likely", args=(a,)):
                return "{}", (a,)
            case ir.Call(op="if_then_else", args=(condition, a, b)):
                return "({} if {} else {})", (a, condition, b)
            case ir.Select(condition=condition, true_value=a, false_value=b):
                return "({} if {} else {})", (a, condition, b)
            case _:
                raise GraphError(f"size {node!r} cannot be written into an artefact", code="BW411")


def _conversion(cast: ir.Expr, value: ir.Expr) -> str:
    """The format of a conversion; sizes fit int32, and keep their values in it."""
    kind = cast.dtype
    if kind.is_float is not value.dtype.is_float:
        return "float({})" if kind.is_float else "int({})"
    if kind.is_float or kind.is_bool or kind.bits >= min(value.dtype.bits, 32):
        return "{}"
    return f"(({{}} - {kind.min_value}) % {1 << kind.bits} + {kind.min_value})"
