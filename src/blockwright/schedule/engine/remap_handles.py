"""Substitute the handles in a record: by those of another schedule, or by sampled numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.analysis import symbols_of
from blockwright.arith import Analyzer, IndexMap
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.engine.record import Primitive, checked, require_numbers


def used_handles(record: Primitive) -> list[Handle]:
    """The handles in a record, including variables: sampled numbers and program symbols."""
    result: list[Handle] = []

    def note(handle: Handle) -> Handle:
        result.append(handle)
        return handle

    for name in record.__struct_fields__:
        _mapped(getattr(record, name), note)
    return result


def translated(record: Primitive, known: Mapping[Handle, Handle], func: ir.PrimFunc) -> Primitive:
    """Translate a record of another schedule to this one's handles; match symbols by name."""

    def change(handle: Handle) -> Handle:
        if handle in known or not isinstance(handle, ir.Var):
            return known.get(handle, handle)
        return next((s for s in symbols_of(func) if s.name == handle.name), handle)

    return _with_handles(record, change)


def resolved(record: Primitive, number: Callable[[ir.Var], int | None]) -> Primitive:
    """The record with sampled numbers substituted for their handles, and checked again."""

    def change(handle: Handle) -> ir.Expr | Handle:
        value = number(handle) if isinstance(handle, ir.Var) else None
        return handle if value is None else ir.const(value, cast("ir.Var", handle).type)

    new = _with_handles(record, change)
    new = record if new is record else checked(new)
    require_numbers(new)
    return new


def _with_handles(record: Primitive, change: Callable[[Handle], Any]) -> Primitive:
    changes: dict[str, Any] = {}
    for name in record.__struct_fields__:
        old = getattr(record, name)
        new = _mapped(old, change)
        if new is not old:
            changes[name] = new
    return msgspec.structs.replace(record, **changes) if changes else record


def _mapped(value: Any, change: Callable[[Handle], Any]) -> Any:
    """A field value with every handle replaced; the same object if nothing changes."""
    if isinstance(value, (BlockRV, LoopRV)):
        return change(value)
    if isinstance(value, ir.Expr):
        new = {v: change(v) for v in ir.free_vars(value)}
        if all(a is b for a, b in new.items()):
            return value
        exchanged = ir.substitute(value, new)
        drawn = any(isinstance(n, ir.IntImm) for n in new.values())
        return Analyzer().simplify(exchanged) if drawn else exchanged
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        parts = tuple(_mapped(v, change) for v in items)
        return parts if any(a is not b for a, b in zip(parts, items, strict=True)) else items
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        inner = {k: _mapped(v, change) for k, v in entries.items()}
        return inner if any(inner[k] is not entries[k] for k in entries) else entries
    if isinstance(value, IndexMap):
        bound = set(value.initial)
        final = _mapped(value.final, lambda h: h if h in bound else change(h))
        return value if final is value.final else msgspec.structs.replace(value, final=final)
    return value
