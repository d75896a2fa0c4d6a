"""Schedule methods, generated from the records; `facade.pyi` states their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, make
from blockwright.schedule.engine.traceback_frames import ends_at_call
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.unsafe import UNSAFE_PRIMITIVES


class Facade:
    """One method per record: it builds the record from the arguments and takes the step."""

    @property
    def unsafe(self) -> Unsafe:
        """Steps that may change what the program means; nothing outside it does."""
        return Unsafe(self)

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """A handle for the block of this name; made from its record like the others."""
        raise NotImplementedError

    def _run(self, record: Primitive) -> Any:
        raise NotImplementedError


class Unsafe:
    """The steps that rest on the word of whoever takes them: `sch.unsafe.<step>(...)`."""

    def __init__(self, schedule: Facade) -> None:
        self._schedule = schedule
        self.get_block = schedule.get_block

    def _run(self, record: Primitive) -> Any:
        return self._schedule._run(record)  # pyright: ignore[reportPrivateUsage]  a part of it


def _method(record: type[Primitive]) -> Callable[..., Any]:
    def method(self: Facade | Unsafe, *args: Any, **kwargs: Any) -> Any:
        return self._run(make(record, args, kwargs, self.get_block))  # pyright: ignore[reportPrivateUsage]  a method of it

    method.__name__ = record.method
    method.__qualname__ = f"Schedule.{record.path()}"
    method.__doc__ = record.__doc__
    return ends_at_call(method)


for _record in PRIMITIVES:
    setattr(Facade, _record.method, _method(_record))
for _record in UNSAFE_PRIMITIVES:
    setattr(Unsafe, _record.method, _method(_record))
