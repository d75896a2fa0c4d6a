"""Scalars of z3 for programs that run on symbols: bit vectors, booleans, uninterpreted floats.

A scalar is a Python `int` or `bool` if it is known without the inputs (an index, a constant, a
condition on them), and otherwise a term. A known integer that meets a term is converted to the
term's type, modulo 2ⁿ, as docs/semantics.md has it for an index that meets a value.
"""

from __future__ import annotations

import importlib
import operator
from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.verify.verdict import Unknown

z3: Any = importlib.import_module("z3")  # untyped
Scalar = Any
"""A Python `int` or `bool`, or a term of z3."""

_ON_BITS: dict[type[ir.Expr] | str, Callable[[Any, Any], Any]] = {
    ir.Add: operator.add, ir.Sub: operator.sub, ir.Mul: operator.mul,
    "bitwise_and": lambda a, b: a & b, "bitwise_or": lambda a, b: a | b,
    "bitwise_xor": lambda a, b: a ^ b,
}  # fmt: skip
_KNOWN: dict[type[ir.Expr] | str, Callable[[Any, Any], Any]] = {
    **_ON_BITS,
    ir.FloorDiv: lambda a, b: a // b, ir.FloorMod: operator.mod, ir.Min: min, ir.Max: max,
}  # fmt: skip
_COMPARED: dict[type[ir.Expr], Callable[[Any, Any], Any]] = {
    ir.EQ: operator.eq, ir.NE: operator.ne, ir.LT: operator.lt, ir.LE: operator.le,
    ir.GT: operator.gt, ir.GE: operator.ge,
}  # fmt: skip
_COMMUTATIVE = ("Add", "Mul", "Min", "Max", "EQ")


class Symbols:
    """Builds terms in one context of z3.

    Attributes:
        uninterpreted: whether a term has floats, whose operations z3 does not know: a model of such
            terms is no counterexample.
        types: the type of each free variable.
    """

    def __init__(self) -> None:
        self.context = z3.Context()
        self.uninterpreted = False
        self.types: dict[str, str] = {}
        self._floats: dict[str, Any] = {}
        self._functions: dict[str, Any] = {}

    def solver(self, resources: int) -> Any:
        """A solver with a deterministic limit for each check."""
        solver = z3.Solver(ctx=self.context)
        solver.set("rlimit", resources)
        solver.set("random_seed", 0)
        return solver

    def variable(self, name: str, dtype: ir.DType) -> Any:
        """A free variable; equal names give the same one."""
        self.types[name] = dtype.name
        return z3.Const(name, self._sort(dtype))

    def constant(self, value: float, dtype: ir.DType) -> Any:
        """The term of a number."""
        if dtype.is_float:
            return z3.Const(f"{dtype} {float(value)!r}", self._sort(dtype))
        return self.term(value, dtype)

    def term(self, value: Scalar, dtype: ir.DType) -> Any:
        """The term of a scalar of the given type; known numbers are taken modulo 2ⁿ."""
        if isinstance(value, (bool, int)):
            if dtype.is_bool:
                return z3.BoolVal(bool(value), self.context)
            if not dtype.is_int:
                raise Unknown(f"the integer {value} as a {dtype}")
            return z3.BitVecVal(int(value), dtype.bits, self.context)
        return value

    def number(self, value: Any, dtype: ir.DType) -> int | bool:
        """The number that a constant term stands for."""
        if dtype.is_bool:
            return z3.is_true(value)
        return int(value.as_signed_long() if dtype.kind == "int" else value.as_long())

    # ------------------------------------------------------------------ operations
    def apply(self, expr: ir.Expr, operands: Sequence[Sequence[Scalar]]) -> list[Scalar]:
        """The lanes of an operation, given those of its operands."""
        if isinstance(expr, ir.Call) and expr.op == "vector_reduce_add" and expr.dtype.is_int:
            total: Scalar = 0
            for lane in operands[0]:
                total = total + self.term(lane, expr.dtype)
            return [total]
        lanes = expr.dtype.lanes
        wide = [list(v) * lanes if len(v) == 1 else list(v) for v in operands]
        if any(len(v) != lanes for v in wide):
            raise Unknown(f"{type(expr).__name__} of vectors of different lengths")
        return [self._lane(expr, [v[k] for v in wide]) for k in range(lanes)]

    def _lane(self, expr: ir.Expr, args: list[Scalar]) -> Scalar:
        dtype = expr.dtype.element
        match expr:
            case ir.IntImm():
                return bool(expr.value) if dtype.is_bool else expr.value
            case ir.FloatImm():
                return self.constant(expr.value, dtype)
            case ir.Cast():
                return self._cast(args[0], expr.value.dtype.element, dtype)
            case ir.BinaryOp():
                return self._binary(type(expr), type(expr).__name__, dtype, args)
            case ir.CompareOp():
                return self._compared(type(expr), expr.a.dtype.element, args)
            case ir.And() | ir.Or() | ir.Not():
                return self._logic(type(expr).__name__, args)
            case ir.Select():
                return self._choice(args, dtype)
            case ir.Call():
                types = [a.dtype.element for a in expr.args]
                return self._call(expr.op, dtype, types, args)
            case _:
                raise Unknown(f"the expression {type(expr).__name__}")

    def _binary(
        self, key: type[ir.Expr] | str, name: str, dtype: ir.DType, args: list[Scalar]
    ) -> Scalar:
        if all(isinstance(a, int) for a in args) and key in _KNOWN:
            a, b = args
            if key in (ir.FloorDiv, ir.FloorMod) and b == 0:
                raise Unknown("a division by zero")
            return self._fitting(_KNOWN[key](a, b), dtype)
        terms = [self.term(a, dtype) for a in args]
        if dtype.is_float:
            return self._function(name, dtype, [dtype, dtype], terms)
        if dtype.is_bool:
            return self._on_booleans(name, terms)
        if key in _ON_BITS:
            return _ON_BITS[key](*terms)
        if key in (ir.Min, ir.Max):
            a, b = terms
            smaller = self._less(a, b, dtype)
            return z3.If(smaller, a, b) if key is ir.Min else z3.If(smaller, b, a)
        return self._divided(name, dtype, args)

    @staticmethod
    def _fitting(number: int, dtype: ir.DType) -> int:
        """A known result: an index, or a value that does not wrap around."""
        if not dtype.is_bool and not dtype.min_value <= number <= dtype.max_value:
            raise Unknown("a number that does not fit its type")
        return number

    @staticmethod
    def _on_booleans(name: str, terms: list[Any]) -> Any:
        if name in ("Min", "bitwise_and"):
            return z3.And(*terms)
        if name in ("Max", "bitwise_or"):
            return z3.Or(*terms)
        if name == "bitwise_xor":
            return z3.Xor(*terms)
        raise Unknown(f"{name} of booleans")

    def _divided(self, name: str, dtype: ir.DType, args: list[Scalar]) -> Any:
        divisor = args[1]
        if not isinstance(divisor, int) or divisor <= 0 or divisor > dtype.max_value:
            raise Unknown("a division by a number that is not a positive constant")
        x, d = (self.term(a, dtype) for a in args)
        if dtype.kind == "uint":
            return z3.UDiv(x, d) if name in ("Div", "FloorDiv") else z3.URem(x, d)
        quotient, remainder = x / d, z3.SRem(x, d)  # truncated
        if name in ("Div", "Mod"):
            return quotient if name == "Div" else remainder
        below = remainder < 0
        if name == "FloorDiv":
            return z3.If(below, quotient - 1, quotient)
        return z3.If(below, remainder + d, remainder)

    @staticmethod
    def _less(a: Any, b: Any, dtype: ir.DType) -> Any:
        return z3.ULT(a, b) if dtype.kind == "uint" else a < b

    def _compared(self, kind: type[ir.Expr], dtype: ir.DType, args: list[Scalar]) -> Scalar:
        if all(isinstance(a, int) for a in args):
            return _COMPARED[kind](*args)
        a, b = (self.term(x, dtype) for x in args)
        if kind in (ir.GT, ir.GE):
            kind, a, b = (ir.LT if kind is ir.GT else ir.LE), b, a
        if dtype.is_float:
            name = "EQ" if kind is ir.NE else kind.__name__
            held = self._function(name, ir.dtype_of("bool"), [dtype, dtype], [a, b])
            return z3.Not(held) if kind is ir.NE else held
        if kind in (ir.EQ, ir.NE):
            return a == b if kind is ir.EQ else a != b
        return self._less(a, b, dtype) if kind is ir.LT else z3.Not(self._less(b, a, dtype))

    def _logic(self, name: str, args: list[Scalar]) -> Scalar:
        if all(isinstance(a, bool) for a in args):
            return not args[0] if name == "Not" else all(args) if name == "And" else any(args)
        terms = [self.term(a, ir.dtype_of("bool")) for a in args]
        return {"Not": z3.Not, "And": z3.And, "Or": z3.Or}[name](*terms)

    def _choice(self, args: list[Scalar], dtype: ir.DType) -> Scalar:
        condition, yes, no = args
        if isinstance(condition, bool):
            return yes if condition else no
        return z3.If(condition, self.term(yes, dtype), self.term(no, dtype))

    def _cast(self, value: Scalar, source: ir.DType, target: ir.DType) -> Scalar:
        if source is target:
            return value
        if isinstance(value, int):
            if target.is_float:
                return self.constant(float(target.numpy().type(value)), target)
            if target.is_bool:
                return value != 0
            kept = target.min_value <= value <= target.max_value
            if min(source.bits, target.bits) >= 32 and kept:
                return int(value)  # still an index
        value = self.term(value, source)
        if source.is_float or target.is_float:
            return self._function(f"cast {source}", target, [source], [value])
        if source.is_bool:
            return z3.If(value, self.term(1, target), self.term(0, target))
        if target.is_bool:
            return value != 0
        more = target.bits - source.bits
        if more <= 0:
            return z3.Extract(target.bits - 1, 0, value) if more else value
        return (z3.SignExt if source.kind == "int" else z3.ZeroExt)(more, value)

    def _call(self, op: str, dtype: ir.DType, types: list[ir.DType], args: list[Scalar]) -> Scalar:
        if op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
            return self._binary(op, op, dtype, args)
        if op in ("shift_left", "shift_right"):
            return self._shifted(op, dtype, args)
        if op == "likely":
            return args[0]
        terms = [self.term(a, t) for a, t in zip(args, types, strict=True)]
        if dtype.is_int and op in ("fma", "abs", "bitwise_not"):
            if op == "fma":
                return terms[0] * terms[1] + terms[2]
            if op == "bitwise_not":
                return ~terms[0]
            return terms[0] if dtype.kind == "uint" else z3.If(terms[0] < 0, -terms[0], terms[0])
        if op == "reinterpret" and dtype.is_int and types[0].is_int:
            return terms[0]
        row = ir.op_row(op)
        if row.kind != "pure" or not row.elementwise:
            raise Unknown(f"the operation {op}")
        return self._function(op, dtype, types, terms)

    def _shifted(self, op: str, dtype: ir.DType, args: list[Scalar]) -> Any:
        amount = args[1]
        if not isinstance(amount, int) or not 0 <= amount < dtype.bits:
            raise Unknown("a shift by an amount that is not a constant of its range")
        if isinstance(args[0], int):
            known = args[0] << amount if op == "shift_left" else args[0] >> amount
            return self._fitting(known, dtype)
        value, by = (self.term(a, dtype) for a in args)
        if op == "shift_left":
            return value << by
        return z3.LShR(value, by) if dtype.kind == "uint" else value >> by

    def _function(
        self, name: str, result: ir.DType, types: Sequence[ir.DType], terms: list[Any]
    ) -> Any:
        """An uninterpreted operation; factors and terms that commute are put in one order."""
        swapped = 2 if name in _COMMUTATIVE or name == "fma" else 0
        terms = [*sorted(terms[:swapped], key=lambda t: t.get_id()), *terms[swapped:]]
        key = f"{name} {' '.join(map(str, types))} {result}"
        if key not in self._functions:
            sorts = [self._sort(t) for t in (*types, result)]
            self._functions[key] = z3.Function(key, *sorts)
            self.uninterpreted = True
        return self._functions[key](*terms)

    def _sort(self, dtype: ir.DType) -> Any:
        if dtype.is_bool:
            return z3.BoolSort(self.context)
        if dtype.is_int:
            return z3.BitVecSort(dtype.bits, self.context)
        if not dtype.is_float:
            raise Unknown(f"a value of type {dtype}")
        self.uninterpreted = True
        if dtype.name not in self._floats:
            self._floats[dtype.name] = z3.DeclareSort(dtype.name, self.context)
        return self._floats[dtype.name]
