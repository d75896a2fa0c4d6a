"""The trace: every step of a schedule as a record, with its Python and JSON forms and replay."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.arith.text import expr_text
from blockwright.schedule.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.record import Primitive, fields_of
from blockwright.support import ScheduleError


class Instruction(msgspec.Struct, frozen=True, eq=False):
    """One step: its record and the handles it returned."""

    record: Primitive
    outputs: tuple[Handle, ...] = ()


class Trace:
    """The steps of a schedule in order."""

    def __init__(self, instructions: tuple[Instruction, ...] = ()) -> None:
        self.instructions = instructions

    def __len__(self) -> int:
        return len(self.instructions)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __repr__(self) -> str:
        return self.as_python()

    def extended(self, instruction: Instruction) -> Trace:
        return Trace((*self.instructions, instruction))

    # ------------------------------------------------------------------ Python
    def as_python(self, schedule: str = "sch") -> str:
        """The calls that repeat the steps, one per line."""
        return "\n".join(_python(step, schedule) for step in self.instructions)

    # ------------------------------------------------------------------ JSON
    def as_json(self) -> list[Any]:
        """Plain data: `[name, {parameter: value}, [handle, …]]` per step."""
        steps: list[Any] = []
        for step in self.instructions:
            record = step.record
            values = {n: _plain(getattr(record, n)) for n, _ in fields_of(type(record))}
            steps.append([record.method, values, [repr(h) for h in step.outputs]])
        return steps

    @staticmethod
    def from_json(
        steps: list[Any], records: Mapping[str, type[Primitive]], func: ir.PrimFunc
    ) -> Trace:
        """A trace from its plain form; symbols are those of `func`, by name."""
        names = {v.name: v for v in ir.collect(func, ir.Var)}
        found: list[Instruction] = []
        for name, values, outputs in steps:
            record = records.get(name)
            if record is None:
                raise ScheduleError(f"the trace names an unknown step {name!r}", code="BW306",
                                    help="it was written by another version")  # fmt: skip
            notes = dict(fields_of(record))
            fields = {k: _unplain(v, notes[k], names) for k, v in values.items()}
            handles = tuple(_handle(text) for text in outputs)
            found.append(Instruction(record(**fields), handles))
        return Trace(tuple(found))


def _python(step: Instruction, schedule: str) -> str:
    record = step.record
    args: list[str] = []
    named = False
    for field, (name, _) in zip(
        msgspec.structs.fields(type(record)), fields_of(type(record)), strict=True
    ):
        value = getattr(record, name)
        if name == record.variadic:
            args += [_text(v) for v in value]
        elif not field.required and value is field.default:
            named = True
        else:
            args.append(f"{name}={_text(value)}" if named or not field.required else _text(value))
    call = f"{schedule}.{record.method}({', '.join(args)})"
    if not step.outputs:
        return call
    left = ", ".join(repr(h) for h in step.outputs)
    comma = "," if len(step.outputs) == 1 and record.returns in ("loops", "blocks") else ""
    return f"{left}{comma} = {call}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_text(v) for v in cast("tuple[Any, ...]", value)) + "]"
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return "{" + ", ".join(f"{k!r}: {_text(v)}" for k, v in items) + "}"
    if isinstance(value, IndexMap):
        return map_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return expr_text(value) if isinstance(value, ir.Expr) else repr(value)


def map_text(index_map: IndexMap) -> str:
    """An index map as a lambda."""
    names = ", ".join(v.name for v in index_map.initial)
    parts = [expr_text(e) for e in index_map.final]
    for position in reversed(index_map.separators):
        parts.insert(position, "...")
    return f"lambda {names}: ({', '.join(parts)}{',' if len(parts) == 1 else ''})"


# --------------------------------------------------------------------------------- plain data
def _plain(value: Any) -> Any:
    if isinstance(value, (BlockRV, LoopRV)):
        return repr(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in cast("tuple[Any, ...]", value)]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, IndexMap):
        return {"$map": map_text(value), "$dtype": [v.type.name for v in value.initial],
                "$final": [e.dtype.name for e in value.final]}  # fmt: skip
    if isinstance(value, ir.Expr):
        return {"$expr": expr_text(value), "$dtype": value.dtype.name}
    return value


def _unplain(value: Any, annotation: str, names: Mapping[str, ir.Var]) -> Any:
    if isinstance(value, str) and "RV" in annotation:
        return _handle(value)
    if isinstance(value, list):
        return tuple(_unplain(v, annotation, names) for v in cast("list[Any]", value))
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        if "$expr" in entries:
            tree = ast.parse(entries["$expr"], mode="eval").body
            return ir.cast_to(ir.as_expr(_evaluate(tree, names)), entries["$dtype"])
        if "$map" in entries:
            return _map(entries, names)
        return {k: _unplain(v, annotation, names) for k, v in entries.items()}
    return value


def _handle(text: str) -> Handle:
    kind = BlockRV if text.startswith("b") else LoopRV
    return kind(int(text[1:]))


def _map(entries: dict[str, Any], names: Mapping[str, ir.Var]) -> IndexMap:
    tree = ast.parse(entries["$map"], mode="eval").body
    assert isinstance(tree, ast.Lambda)
    initial = tuple(ir.var(a.arg, t)
                    for a, t in zip(tree.args.args, entries["$dtype"], strict=True))  # fmt: skip
    inside = {**names, **{v.name: v for v in initial}}
    assert isinstance(tree.body, ast.Tuple)
    found = [_evaluate(e, inside) for e in tree.body.elts]
    separators = [k for k, value in enumerate(found) if value is IndexMap.AXIS_SEPARATOR]
    plain = [value for value in found if value is not IndexMap.AXIS_SEPARATOR]
    types = [ir.dtype_of(name) for name in entries["$final"]]
    final = tuple(ir.as_expr(v, t) for v, t in zip(plain, types, strict=True))
    return IndexMap(initial, final, tuple(k - n for n, k in enumerate(separators)))


def _bits(op: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: ir.call(op, *ir.match_types(a, b))


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: ir.floordiv, ast.Mod: operator.mod, ast.Lt: operator.lt,
    ast.BitXor: _bits("bitwise_xor"), ast.BitAnd: _bits("bitwise_and"),
    ast.BitOr: _bits("bitwise_or"), ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {"min": ir.minimum, "max": ir.maximum}


def _evaluate(node: ast.expr, names: Mapping[str, ir.Var]) -> Any:
    """The value of the few kinds of expressions that index maps and factors are made of."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, names), _evaluate(node.right, names))
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        values = [_evaluate(a, names) for a in node.args]
        if node.func.id in _CALLS:
            return _CALLS[node.func.id](*values)
        return ir.cast_to(ir.as_expr(values[0]), node.func.id)
    raise ScheduleError(f"the trace holds an expression that cannot be read: {ast.unparse(node)}",
                        code="BW306")  # fmt: skip
