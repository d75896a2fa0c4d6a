"""JSON form of a trace: convert steps to plain data and back."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from blockwright import ir
from blockwright.analysis import symbols_of
from blockwright.arith import IndexMap
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.handle import BlockRV, ExprRV, Handle, LoopRV, handle_name
from blockwright.schedule.engine.instruction import CompositeCall, Instruction
from blockwright.schedule.engine.record import Primitive, build, fields_of
from blockwright.schedule.serialize.expressions import called_text, is_infix
from blockwright.schedule.serialize.python import map_text
from blockwright.script import tir
from blockwright.support import BlockwrightError, ScheduleError

_NUMBER_TYPE = re.compile(r"bool|(u?int|float|bfloat)\d+")
_QUOTE = "$'"
"""In front of keys of users' mappings that begin with `$`."""
_HANDLE = re.compile(r"[bl]\d+|v\d+_*")


def steps_as_json(steps: Iterable[Instruction]) -> list[Any]:
    """One `[step, {parameter: value}, [handle, …]]` per step; a step of a composite call also has
    `[number, text]`."""
    result: list[Any] = []
    calls: dict[CompositeCall, int] = {}
    for step in steps:
        record = step.record
        values = {n: _plain(getattr(record, n)) for n, _ in fields_of(type(record))}
        entry: list[Any] = [record.path(), values, [handle_name(h) for h in step.outputs]]
        if step.call is not None:
            entry.append([calls.setdefault(step.call, len(calls)), step.call.text])
        result.append(entry)
    return result


def steps_from_json(
    steps: list[Any], records: Mapping[str, type[Primitive]], func: ir.PrimFunc
) -> tuple[Instruction, ...]:
    """Deserialize steps; sampled numbers and symbols of `func` are resolved by name.

    Raises: ScheduleError BW306 for data that is not a trace.
    """
    names = {v.name: v for v in symbols_of(func)}
    calls: dict[int, CompositeCall] = {}
    result: list[Instruction] = []
    if not isinstance(cast("object", steps), list):
        raise _unreadable("the trace", steps)
    for number, step in enumerate(steps):
        if not _is_step(step):
            raise _unreadable(f"step {number} of the trace", step)
        path, values, outputs, *rest = step
        record = records.get(path)
        if record is None:
            raise ScheduleError(
                f"the trace names an unknown step {path!r}",
                code="BW306",
                help="it was written by another version, or its record class is missing",
            )
        notes = dict(fields_of(record))
        try:
            fields = {k: _unplain(v, notes.get(k, ""), names) for k, v in values.items()}
        except BlockwrightError:
            raise
        except _MALFORMED as error:
            raise _unreadable(f"a parameter of step {number} of the trace", values) from error
        handles = tuple(_handle(text) for text in outputs)
        names |= {h.name: h for h in handles if isinstance(h, ExprRV)}
        call = calls.setdefault(rest[0][0], CompositeCall(rest[0][1])) if rest else None
        result.append(Instruction(build(record, fields), handles, call))
    return tuple(result)


_MALFORMED = (SyntaxError, TypeError, ValueError, LookupError, AttributeError, AssertionError)


def _is_step(step: Any) -> bool:
    """Whether data has the form of a step: `[step, {parameter: value}, [handle, …]]`."""
    if not isinstance(step, list) or len(cast("list[Any]", step)) not in (3, 4):
        return False
    path, values, outputs, *rest = cast("list[Any]", step)
    kinds = isinstance(path, str) and isinstance(values, dict) and isinstance(outputs, list)
    if not kinds or not all(isinstance(name, str) for name in cast("list[Any]", outputs)):
        return False
    return not rest or (
        isinstance(rest[0], list) and list(map(type, cast("list[Any]", rest[0]))) == [int, str]
    )


def _unreadable(what: str, data: object) -> ScheduleError:
    return ScheduleError(
        f"{what} is {repr(data)[:60]}, which as_json does not write",
        code="BW306",
        help="pass the data that trace.as_json() returned, read by json.loads",
    )


def _plain(value: Any) -> Any:
    if isinstance(value, (BlockRV, LoopRV)):
        return repr(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in cast("tuple[Any, ...]", value)]
    if isinstance(value, dict):
        return {_key(k): _plain(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, IndexMap):
        return {
            "$map": map_text(value, _text),
            "$dtype": [v.type.name for v in value.initial],
            "$final": [e.dtype.name for e in value.final],
        }
    if isinstance(value, ir.Expr):
        return {"$expr": _text(value), "$dtype": value.dtype.name}
    return value


def _key(key: str) -> str:
    """A key of a user's mapping; the keys that begin with `$` are those of this module."""
    return _QUOTE + key if key.startswith("$") else key


def _text(expr: ir.Expr) -> str:
    return expr_text(expr) if is_infix(expr) else called_text(expr, {})


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
        return {k.removeprefix(_QUOTE): _unplain(v, annotation, names) for k, v in entries.items()}
    return value


def _handle(text: str) -> Handle:
    if _HANDLE.fullmatch(text) is None:
        raise ScheduleError(
            f"{text!r} in the trace is not a handle", code="BW306", help="handles are b1, l2 or v3"
        )
    if text.startswith("v"):
        return ExprRV(text, ir.dtype_of("int32"))
    kind = BlockRV if text.startswith("b") else LoopRV
    return kind(int(text[1:]))


def _map(entries: dict[str, Any], names: Mapping[str, ir.Var]) -> IndexMap:
    tree = ast.parse(entries["$map"], mode="eval").body
    assert isinstance(tree, ast.Lambda)
    initial = tuple(
        ir.var(a.arg, t) for a, t in zip(tree.args.args, entries["$dtype"], strict=True)
    )
    inside = {**names, **{v.name: v for v in initial}}
    assert isinstance(tree.body, ast.Tuple)
    types = [ir.dtype_of(name) for name in entries["$final"]]
    result = [_evaluate(e, inside) for e in tree.body.elts]
    separators = [k for k, value in enumerate(result) if value is IndexMap.AXIS_SEPARATOR]
    plain = [value for value in result if value is not IndexMap.AXIS_SEPARATOR]
    final = tuple(ir.as_expr(v, t) for v, t in zip(plain, types, strict=True))
    return IndexMap(initial, final, tuple(k - n for n, k in enumerate(separators)))


def _bits(op: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: ir.call(op, *ir.match_types(a, b))


def _quotient(a: Any, b: Any) -> Any:
    return a / b


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: ir.floordiv, ast.Mod: operator.mod, ast.Lt: operator.lt,
    ast.BitXor: _bits("bitwise_xor"), ast.BitAnd: _bits("bitwise_and"),
    ast.BitOr: _bits("bitwise_or"), ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg, ast.Div: _quotient,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {"min": ir.minimum, "max": ir.maximum}


def _evaluate(node: ast.expr, names: Mapping[str, ir.Var]) -> Any:
    """Evaluate the restricted expressions that index maps and factors consist of."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left, names), _evaluate(node.right, names))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _OPERATORS:
        left, right = _evaluate(node.left, names), _evaluate(node.comparators[0], names)
        return _OPERATORS[type(node.ops[0])](left, right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.operand, names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        values = [_evaluate(a, names) for a in node.args]
        if node.func.id in _CALLS:
            return _CALLS[node.func.id](*values)
        if _NUMBER_TYPE.fullmatch(node.func.id):
            return ir.cast_to(ir.as_expr(values[0]), node.func.id)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        called: Any = getattr(tir, node.func.attr, None)
        if callable(called):
            options = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
            return called(*(_evaluate(a, names) for a in node.args), **options)
    raise ScheduleError(
        f"the trace contains an unsupported expression: {ast.unparse(node)}",
        code="BW306",
        help="expressions of a trace are written by to_json; do not edit them",
    )
