"""Python form of a trace: the calls that repeat its steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV, handle_name
from blockwright.schedule.engine.instruction import CompositeCall, Instruction
from blockwright.schedule.engine.record import Primitive, fields_of
from blockwright.schedule.serialize.expressions import called_text, is_infix


def steps_as_python(steps: Iterable[Instruction], schedule: str) -> str:
    """One call per line; two comments enclose the steps of a composite call."""
    lines: list[str] = []
    drawn: set[Handle] = set()
    call: CompositeCall | None = None
    for step in steps:
        if step.call is not call:
            if call is not None:
                lines.append(f"# end of {_name(call)}")
            if step.call is not None:
                lines.append(f"# {schedule}.{' '.join(step.call.text.splitlines())}:")
            call = step.call
        lines.append(_line(step, _Text(schedule, drawn)))
        drawn |= set(step.outputs)
    if call is not None:
        lines.append(f"# end of {_name(call)}")
    return "\n".join(lines)


def _name(call: CompositeCall) -> str:
    return " ".join(call.text.split("(", 1)[0].splitlines())


def _line(step: Instruction, text: _Text) -> str:
    call = call_text(step.record, text.value, text.schedule)
    if not step.outputs:
        return call
    left = ", ".join(handle_name(h) for h in step.outputs)
    listed = step.record.returns in ("loops", "blocks", "numbers")
    return f"{left}{',' if len(step.outputs) == 1 and listed else ''} = {call}"


def call_text(record: Primitive, value: Callable[[Any], str], schedule: str = "") -> str:
    """The call that builds a record; parameters with default values are omitted."""
    args: list[str] = []
    named = False
    fields = msgspec.structs.fields(type(record))
    for field, (name, _) in zip(fields, fields_of(type(record)), strict=True):
        held = getattr(record, name)
        if name == record.variadic:
            args += [value(v) for v in held]
        elif not field.required and _same(held, field.default):
            named = True
        else:
            args.append(f"{name}={value(held)}" if named or not field.required else value(held))
    return f"{schedule}{'.' if schedule else ''}{record.path()}({', '.join(args)})"


def _same(held: Any, default: Any) -> bool:
    return held is default or (isinstance(held, str) and held == default)


def map_text(index_map: IndexMap, text: Callable[[ir.Expr], str] = expr_text) -> str:
    """An index map as lambda text."""
    names = ", ".join(v.name for v in index_map.initial)
    parts = [text(e) for e in index_map.final]
    for position in reversed(index_map.separators):
        parts.insert(position, "...")
    return f"lambda {names}: ({', '.join(parts)}{',' if len(parts) == 1 else ''})"


class _Text:
    """Prints values as Python text; symbols of the program become `sch.symbol("n")`."""

    def __init__(self, schedule: str, drawn: set[Handle]) -> None:
        self.schedule = schedule
        self._drawn = drawn

    def value(self, value: Any) -> str:
        if isinstance(value, tuple):
            return "[" + ", ".join(self.value(v) for v in cast("tuple[Any, ...]", value)) + "]"
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            return "{" + ", ".join(f"{k!r}: {self.value(v)}" for k, v in items) + "}"
        if isinstance(value, IndexMap):
            return map_text(value, lambda e: self.expr(e, set(value.initial)))
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        return self.expr(value, set()) if isinstance(value, ir.Expr) else repr(value)

    def expr(self, expr: ir.Expr, bound: set[ir.Var]) -> str:
        """Python text that evaluates to the expression."""
        if not is_infix(expr):
            free = {v.name for v in ir.free_vars(expr) if v not in bound | self._drawn}
            return called_text(expr, {name: f"{self.schedule}.symbol({name!r})" for name in free})
        names = {
            v: ir.Var(f'{self.schedule}.symbol("{v.name}")', v.type)
            for v in ir.free_vars(expr)
            if v not in bound | self._drawn
        }
        return _spelled(ir.substitute(expr, names))


def _spelled(expr: ir.Expr) -> str:
    """Infix text with `T.` calls where Python's own functions would differ (`min`, casts)."""
    if isinstance(expr, (ir.Min, ir.Max)):
        return f"T.{expr.symbol}({_spelled(expr.a)}, {_spelled(expr.b)})"
    if isinstance(expr, ir.Cast):
        return f"T.{expr.type}({_spelled(expr.value)})"
    if isinstance(expr, (ir.BinaryOp, ir.CompareOp)):
        return f"{_nested(expr.a)} {expr.symbol} {_nested(expr.b)}"
    return expr_text(expr)


def _nested(expr: ir.Expr) -> str:
    text = _spelled(expr)
    infix = isinstance(expr, (ir.BinaryOp, ir.CompareOp)) and not isinstance(expr, (ir.Min, ir.Max))
    return f"({text})" if infix else text


def short_value(value: Any) -> str:
    """Short text of a value, with handles and symbols by name."""
    if isinstance(value, (BlockRV, LoopRV)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(short_value(v) for v in cast("tuple[Any, ...]", value)) + "]"
    if isinstance(value, IndexMap):
        return map_text(value)
    return expr_text(value) if isinstance(value, ir.Expr) else repr(value)
