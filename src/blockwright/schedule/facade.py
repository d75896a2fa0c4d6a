"""Schedule methods, generated from the records; `facade.pyi` states their types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.record import Primitive, make


class Facade:
    """One method per record: it builds the record from the arguments and takes the step."""

    def _run(self, record: Primitive) -> Any:
        raise NotImplementedError


def _method(record: type[Primitive]) -> Callable[..., Any]:
    def method(self: Facade, *args: Any, **kwargs: Any) -> Any:
        return self._run(make(record, args, kwargs))  # pyright: ignore[reportPrivateUsage]  a method of it

    method.__name__ = record.method
    method.__qualname__ = f"Schedule.{record.method}"
    method.__doc__ = record.__doc__
    return method


for _record in PRIMITIVES:
    setattr(Facade, _record.method, _method(_record))
