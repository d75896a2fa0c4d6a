"""Records: a primitive is a frozen record of its parameters, checked when it is built.

The record is the trace instruction, its JSON form and the Python call at once. Field order is the
parameter order of the `Schedule` method; `variadic` names the field that takes `*args`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, cast

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.handle import BlockRV, LoopRV
from blockwright.schedule.state import State, Step
from blockwright.support import ScheduleError

Returns = Literal["none", "block", "blocks", "loop", "loops"]
Factor = int | ir.Expr | None
AnyIndexMap = IndexMap
"""In calls, a lambda from indices to new indices will do."""


class Primitive(msgspec.Struct, frozen=True, eq=False):
    """Base of all schedule instructions."""

    method: ClassVar[str] = ""
    returns: ClassVar[Returns] = "none"
    variadic: ClassVar[str] = ""

    def apply(self, state: State) -> Step:
        """Check the requirements and rewrite; raises `ScheduleError` and changes nothing else."""
        raise NotImplementedError(type(self).__name__)


def fields_of(record: type[Primitive]) -> list[tuple[str, str]]:
    """Names and annotations of the parameters in order."""
    notes = {k: v for base in reversed(record.__mro__)
             for k, v in getattr(base, "__annotations__", {}).items()}  # fmt: skip
    return [(name, str(notes[name])) for name in record.__struct_fields__]


def make(record: type[Primitive], args: Sequence[Any], kwargs: dict[str, Any]) -> Primitive:
    """A record from call arguments, each checked against its field."""
    fields = fields_of(record)
    values: dict[str, Any] = {}
    names = [name for name, _ in fields]
    rest = list(args)
    for name in names:
        if name == record.variadic:
            values[name], rest = tuple(rest), []
        elif rest:
            values[name] = rest.pop(0)
    if rest:
        raise _argument(record, f"takes {len(names)} arguments, got {len(args)}")
    for name, value in kwargs.items():
        if name not in names or (name in values and name != record.variadic):
            known = ", ".join(names)
            raise _argument(record, f"argument {name!r} is unknown or given twice",
                            f"parameters: {known}")  # fmt: skip
        values[name] = value
    for position, (name, annotation) in enumerate(fields, 1):
        if name in values:
            where = f"argument {position}, {name!r}"
            values[name] = _check(record, where, annotation, values[name])
    try:
        return record(**values)
    except TypeError as error:
        raise _argument(record, str(error)) from None


def _argument(record: type[Primitive], text: str, help: str | None = None) -> ScheduleError:
    return ScheduleError(f"{record.method}: {text}", code="BW304", help=help)


def _check(record: type[Primitive], where: str, annotation: str, value: Any) -> Any:
    wanted, convert = PROCESSORS[annotation]
    try:
        return convert(value)
    except (TypeError, ValueError) as error:
        detail = f": {error}" if isinstance(error, ValueError) and str(error) else ""
        kind = type(value).__name__
        raise _argument(record, f"{where}: expected {wanted}, got {kind} {value!r}{detail}"
                        ) from None  # fmt: skip


def _instance(*kinds: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        return value

    return convert


def _integer(value: Any) -> int:
    if isinstance(value, ir.IntImm):
        return value.value
    return _instance(int)(value)


def _optional(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _many(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def each(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise TypeError
        return tuple(convert(v) for v in value)

    return each


def _factor(value: Any) -> Factor:
    if value is None or isinstance(value, ir.IntImm):
        return None if value is None else value.value
    if isinstance(value, ir.Expr):
        if not value.dtype.is_int:
            raise ValueError("a factor is an integer")
        return value
    number = _instance(int)(value)
    if number < 1:
        raise ValueError("a factor is at least 1")
    return number


def _annotation(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_annotation(v) for v in cast("list[Any]", value))
    if isinstance(value, dict):
        return {str(k): _annotation(v) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, (ir.IntImm, ir.FloatImm, ir.StringImm)):
        return value.value
    return _instance(bool, int, float, str, ir.Expr)(value)


def _loop_or_blocks(value: Any) -> Any:
    return value if isinstance(value, LoopRV) else _many(_instance(BlockRV))(value)


def _number(value: Any) -> Any:
    return _instance(bool, int, float, ir.Expr)(value)


def _index_map(value: Any) -> IndexMap:
    """The record form of an index map; a function must name its indices one by one."""
    if isinstance(value, IndexMap):
        return value
    if not callable(value):
        raise TypeError
    kinds = [p.kind for p in inspect.signature(value).parameters.values()]
    if any(k is not inspect.Parameter.POSITIONAL_OR_KEYWORD for k in kinds):
        raise ValueError("write one parameter per index, as in lambda i, j: (j, i)")
    return IndexMap.from_func(cast("Callable[..., Sequence[Any]]", value), len(kinds))


PROCESSORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BlockRV": ("a block handle", _instance(BlockRV)),
    "LoopRV": ("a loop handle", _instance(LoopRV)),
    "BlockRV | LoopRV": ("a block or loop handle", _instance(BlockRV, LoopRV)),
    "LoopRV | tuple[BlockRV, ...]": ("a loop handle or a list of block handles", _loop_or_blocks),
    "tuple[LoopRV, ...]": ("loop handles", _many(_instance(LoopRV))),
    "tuple[BlockRV, ...]": ("block handles", _many(_instance(BlockRV))),
    "tuple[BlockRV, ...] | None": ("block handles", _optional(_many(_instance(BlockRV)))),
    "tuple[Factor, ...]": ("factors (integers, expressions, one None)", _many(_factor)),
    "tuple[int, ...]": ("integers", _many(_integer)),
    "tuple[Factor, ...] | None": ("factors", _optional(_many(_factor))),
    "bool": ("True or False", _instance(bool)),
    "int": ("an integer", _integer),
    "int | str": ("a buffer index or name", _instance(int, str)),
    "str": ("a string", _instance(str)),
    "str | None": ("a string", _optional(_instance(str))),
    "AnyIndexMap": ("a function from indices to new indices", _index_map),
    "Any": ("a number, string, expression, list or mapping", _annotation),
    "Number | None": ("a number or expression", _optional(_number)),
}
"""Field annotation → what it expects, in words, and how an argument is taken."""
