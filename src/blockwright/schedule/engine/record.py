"""Primitive records: a primitive is a frozen record of its parameters, checked when it is built.

The record defines the trace instruction, its JSON form and the Python call. Field order is the
parameter order of the `Schedule` method; `variadic` names the field that receives `*args`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Literal, Self, cast

import msgspec

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.support import ScheduleError
from blockwright.support.registry import submodules

Returns = Literal["none", "block", "blocks", "loop", "loops", "number", "numbers"]
Factor = int | ir.Expr | None
AnyIndexMap = IndexMap
"""Calls may pass a lambda from indices to new indices."""
NewRanges = IndexMap
"""Calls may pass a lambda from iterators to an index or a (start, end) per dimension."""
BufferName = str | tuple[str, int | str]
"""Calls may pass a buffer that the block reads or writes."""
PadValue = float | IndexMap | None
"""Calls may pass a lambda from indices to a value."""


class Primitive(msgspec.Struct, frozen=True, eq=False):
    """Base of all schedule primitives.

    Attributes:
        namespace: the attribute of `Schedule` that has the method; empty for `Schedule` itself.
        method: the name of the method.
        pure: whether the step only queries or samples; it is dead if its results are unused.
        returns: what the step returns.
        variadic: the field that receives `*args`; empty for none.
        siblings: whether the step moves, copies or divides blocks of a body; it then rejects
            blocks of an initial value.
    """

    namespace: ClassVar[str] = ""
    method: ClassVar[str] = ""
    pure: ClassVar[bool] = False
    returns: ClassVar[Returns] = "none"
    variadic: ClassVar[str] = ""
    siblings: ClassVar[bool] = False

    @classmethod
    def path(cls) -> str:
        """The call without the leading `sch.`; names the step in traces and errors."""
        return f"{cls.namespace}.{cls.method}" if cls.namespace else cls.method

    def function(self) -> str | None:
        """The function that the record names; None if its handles determine it."""
        return None

    def in_function(self, name: str) -> Self:
        """The record for a function of a module; itself if its handles determine the function."""
        del name
        return self

    def apply(self, state: StepState) -> StepResult:
        """Check the requirements and rewrite the program; raises `ScheduleError` if illegal."""
        raise NotImplementedError(type(self).__name__)


class UnsafePrimitive(Primitive, frozen=True, eq=False):
    """Base of the primitives under `sch.unsafe`, which may change the program's semantics."""

    namespace: ClassVar[str] = "unsafe"


def records(package: str, path: Iterable[str]) -> tuple[type[Primitive], ...]:
    """All records that the files of a package define, ordered by the names of their methods."""
    found = [
        value
        for module in submodules(package, path)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Primitive)
        if value.__module__ == module.__name__ and value.method
    ]
    return tuple(sorted(found, key=lambda record: record.method))


def fields_of(record: type[Primitive]) -> list[tuple[str, str]]:
    """Names and type annotations of the parameters, in order."""
    notes = {
        k: v
        for base in reversed(record.__mro__)
        for k, v in getattr(base, "__annotations__", {}).items()
    }
    return [(name, str(notes[name])) for name in record.__struct_fields__]


def make(
    record: type[Primitive],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    block: Callable[[str], BlockRV],
) -> Primitive:
    """Build a record from call arguments and check each against its field.

    `block` looks up a block by name, for fields that hold block handles.
    """
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
            raise _argument(
                record, f"argument {name!r} is unknown or passed twice", f"parameters: {known}"
            )
        values[name] = value
    for name, annotation in fields:
        if "BlockRV" in annotation and name in values:
            values[name] = _block_names(values[name], block)
    return build(record, values)


def _block_names(value: Any, block: Callable[[str], BlockRV]) -> Any:
    if isinstance(value, str):
        return block(value)
    if isinstance(value, (list, tuple)):
        return tuple(_block_names(v, block) for v in cast("list[Any]", value))
    return value


def checked(record: Primitive) -> Primitive:
    """Check the fields again, once sampled numbers are substituted."""
    return build(type(record), {n: getattr(record, n) for n in record.__struct_fields__})


def require_numbers(record: Primitive) -> None:
    """Require that integer fields hold integers, once sampled numbers are substituted."""
    for name, annotation in fields_of(type(record)):
        value = getattr(record, name)
        held = cast("Sequence[Any]", value) if isinstance(value, tuple) else (value,)
        if annotation in _INTEGERS and any(isinstance(v, ir.Expr) for v in held):
            raise _argument(
                type(record),
                f"argument {name!r}: expected an integer, got {value!r}",
                "pass an integer, or a number that the schedule sampled",
            )


_INTEGERS = frozenset({"int", "int | None", "tuple[int, ...]"})


def build(record: type[Primitive], values: dict[str, Any]) -> Primitive:
    """Build a record from its fields and check each."""
    for position, (name, annotation) in enumerate(fields_of(record), 1):
        if name in values:
            where = f"argument {position}, {name!r}"
            values[name] = _check(record, where, annotation, values[name])
    try:
        return record(**values)
    except TypeError as error:
        raise _argument(record, str(error)) from None


def _argument(record: type[Primitive], text: str, help: str | None = None) -> ScheduleError:
    parameters = ", ".join(f"{name}: {annotation}" for name, annotation in fields_of(record))
    return ScheduleError(
        f"{record.path()}: {text}",
        code="BW304",
        help=help or f"call it as {record.path()}({parameters})",
    )


def _check(record: type[Primitive], where: str, annotation: str, value: Any) -> Any:
    wanted, convert = PROCESSORS[annotation]
    try:
        return convert(value)
    except (TypeError, ValueError) as error:
        detail = f": {error}" if isinstance(error, ValueError) and str(error) else ""
        kind = type(value).__name__
        raise _argument(
            record, f"{where}: expected {wanted}, got {kind} {value!r}{detail}"
        ) from None


def _instance(*kinds: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        return value

    return convert


def _integer(value: Any) -> Any:
    """An integer; an expression of sampled numbers stays symbolic until the step is applied."""
    if isinstance(value, ir.IntImm):
        return value.value
    if isinstance(value, ir.Expr) and value.dtype.is_int:
        return value
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


def _buffer_name(value: Any) -> Any:
    return value if isinstance(value, ir.Buffer) else _annotation(value)


def _loop_or_blocks(value: Any) -> Any:
    return value if isinstance(value, LoopRV) else _many(_instance(BlockRV))(value)


def _number(value: Any) -> Any:
    return _instance(bool, int, float, ir.Expr)(value)


def _real(value: Any) -> float:
    return float(_instance(int, float)(value))


class OpenMap(msgspec.Struct, frozen=True, eq=False):
    """An index map of `*indices` of unknown rank; `complete_arguments.py` fixes the rank."""

    at_rank: Callable[[int], IndexMap]


def _closed(value: Any, at_rank: Callable[[int], IndexMap]) -> IndexMap | OpenMap:
    """`at_rank(number of parameters)`, or an `OpenMap` for a function of `*indices`."""
    if not callable(value):
        raise TypeError
    kinds = [p.kind for p in inspect.signature(value).parameters.values()]
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    if kinds and kinds[-1] is inspect.Parameter.VAR_POSITIONAL:
        if all(k in plain for k in kinds[:-1]):
            return OpenMap(at_rank)
    elif all(k in plain for k in kinds):
        return at_rank(len(kinds))
    raise ValueError("write one parameter per index, as in lambda i, j: (j, i), or *indices")


def _index_map(value: Any) -> IndexMap | OpenMap:
    """Convert an index map argument to its record form."""
    if isinstance(value, (IndexMap, OpenMap)):
        return value
    fn = cast("Callable[..., Sequence[Any]]", value)
    return _closed(value, lambda rank: IndexMap.from_func(fn, rank))


def _sequence(value: Any) -> tuple[Any, ...] | None:
    """A tuple or list as a tuple; None for anything else."""
    return tuple(cast("Sequence[Any]", value)) if isinstance(value, (tuple, list)) else None


def _new_ranges(value: Any) -> IndexMap | OpenMap:
    """Convert a ranges argument: a map to the start and end of each range, separated by axis
    separators."""
    if isinstance(value, (IndexMap, OpenMap)):
        return value
    return _closed(value, lambda rank: _ranges_at(value, rank))


def _ranges_at(fn: Callable[..., Any], rank: int) -> IndexMap:
    initial = tuple(ir.var(f"i{k}", "int64") for k in range(rank))
    result: Any = fn(*initial)
    several = _sequence(result)
    parts: list[Any] = [result] if several is None else list(several)
    if any(part is IndexMap.AXIS_SEPARATOR for part in parts):  # as a trace writes it
        ends = [part for part in parts if part is not IndexMap.AXIS_SEPARATOR]
    else:
        ends = [end for part in parts for end in _sequence(part) or (part, ir.as_expr(part) + 1)]
    if len(ends) % 2:
        raise ValueError("write an index, or a pair of start and end, per dimension")
    final = tuple(ir.as_expr(e, ir.dtype_of("int64")) for e in ends)
    return IndexMap(initial, final, tuple(range(0, len(final), 2)))


def _pad_value(value: Any) -> Any:
    """A number, or a function of indices as a map to one value of any type."""
    if value is None or isinstance(value, (bool, int, float, IndexMap, OpenMap)):
        return value
    if isinstance(value, (ir.IntImm, ir.FloatImm)):
        return value.value
    return _closed(value, lambda rank: _value_at(value, rank))


def _value_at(fn: Callable[..., Any], rank: int) -> IndexMap:
    initial = tuple(ir.var(f"i{k}", "int64") for k in range(rank))
    result: Any = fn(*initial)
    one: Any = (_sequence(result) or (result,))[0]
    return IndexMap(initial, (ir.as_expr(one),))


PROCESSORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "BlockRV": ("a block handle or name", _instance(BlockRV)),
    "LoopRV": ("a loop handle", _instance(LoopRV)),
    "BlockRV | LoopRV": ("a block handle or name, or a loop handle", _instance(BlockRV, LoopRV)),
    "LoopRV | tuple[BlockRV, ...]": ("a loop handle or a list of block handles", _loop_or_blocks),
    "tuple[LoopRV, ...]": ("loop handles", _many(_instance(LoopRV))),
    "tuple[BlockRV, ...]": ("block handles or names", _many(_instance(BlockRV))),
    "tuple[BlockRV, ...] | None": ("block handles or names", _optional(_many(_instance(BlockRV)))),
    "tuple[Factor, ...]": ("factors (integers, expressions, one None)", _many(_factor)),
    "tuple[str, ...] | None": ("names", _optional(_many(_instance(str)))),
    "tuple[int, ...]": ("integers", _many(_integer)),
    "tuple[int, ...] | None": ("integers", _optional(_many(_integer))),
    "tuple[Factor, ...] | None": ("factors", _optional(_many(_factor))),
    "bool": ("True or False", _instance(bool)),
    "int": ("an integer", _integer),
    "int | str": ("a buffer, its index or name", _instance(int, str, ir.Buffer)),
    "str": ("a string", _instance(str)),
    "str | None": ("a string", _optional(_instance(str))),
    "AnyIndexMap": ("a function from indices to new indices", _index_map),
    "NewRanges": ("a function from iterators to ranges", _new_ranges),
    "PadValue": ("a number or a function from indices to one", _pad_value),
    "tuple[float, ...]": ("numbers", _many(_real)),
    "int | None": ("an integer", _optional(_integer)),
    "Any": ("a number, string, expression, list or mapping", _annotation),
    "BufferName": ('a buffer, its name, or ("read" | "write", position)', _buffer_name),
    "Number | None": ("a number or expression", _optional(_number)),
}
"""Field annotation → description of the expected argument, and its check and conversion."""
