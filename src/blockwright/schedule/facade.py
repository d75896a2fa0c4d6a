"""Schedule methods, generated from the primitive records; `facade.pyi` declares their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.schedule.engine.handle import BlockRV
from blockwright.schedule.engine.record import Primitive, make
from blockwright.schedule.engine.traceback_frames import ends_at_call
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.unsafe import UNSAFE_PRIMITIVES


class Facade:
    """One method per primitive: it builds the record from the arguments and applies it."""

    @property
    def unsafe(self) -> Unsafe:
        """Primitives that may change the program's semantics; all others preserve them."""
        return Unsafe(self)

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """A handle for the block with this name; replaced by the generated method."""
        raise NotImplementedError

    def _run(self, record: Primitive) -> Any:
        raise NotImplementedError


class Unsafe:
    """Primitives whose correctness the caller asserts: `sch.unsafe.<step>(...)`."""

    def __init__(self, schedule: Facade) -> None:
        self._schedule = schedule
        self.get_block = schedule.get_block

    def _run(self, record: Primitive) -> Any:
        return self._schedule._run(record)  # pyright: ignore[reportPrivateUsage]


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
