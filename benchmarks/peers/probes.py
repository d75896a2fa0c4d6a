"""The machine's own speed, measured like a peer: arithmetic and memory.

Arithmetic uses the instructions that a comparison is limited to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.built_for import NATIVE, built_for
from blockwright.measure import peak_call, read_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Arithmetic:
    """Independent FMA chains."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        target = built_for(options.get("target", NATIVE))
        self._call, self._operations = peak_call(options["threads"], target)

    def about(self) -> dict[str, Any]:
        return {"operations": self._operations}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        return self._call


class Bandwidth:
    """Read as many bytes as a case moves, repeatedly."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._threads = options["threads"]
        self._read = 0.0

    def about(self) -> dict[str, Any]:
        return {"bytes": self._read}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        call, self._read = read_call(self._threads, point["moved"])
        return call
