"""Generates `facade.pyi`, the types of the methods that `facade.py` builds from the records.

`python -m blockwright.schedule.stub` rewrites the file; a test checks that it is current.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from blockwright.schedule.engine.record import Primitive, fields_of
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.unsafe import UNSAFE_PRIMITIVES

_RESULTS = {
    "none": "None",
    "block": "BlockRV",
    "loop": "LoopRV",
    "blocks": "list[BlockRV]",
    "loops": "list[LoopRV]",
    "number": "ExprRV",
    "numbers": "list[ExprRV]",
}
_ACCEPTED = {
    "BlockRV": "BlockRV | str",
    "BlockRV | LoopRV": "BlockRV | LoopRV | str",
    "int": "int | ir.Expr",
    "tuple[Factor, ...]": "Sequence[int | ir.Expr | None]",
    "tuple[Factor, ...] | None": "Sequence[int | ir.Expr | None] | None",
    "LoopRV | tuple[BlockRV, ...]": "LoopRV | Sequence[BlockRV | str]",
    "tuple[int, ...] | None": "Sequence[int] | None",
    "tuple[float, ...]": "Sequence[float]",
    "int | None": "int | ir.Expr | None",
    "tuple[str, ...] | None": "Sequence[str] | None",
    "tuple[int, ...]": "Sequence[int | ir.Expr]",
    "tuple[BlockRV, ...]": "Sequence[BlockRV | str]",
    "tuple[BlockRV, ...] | None": "Sequence[BlockRV | str] | None",
    "BufferName": "ir.Buffer | str | tuple[str, int | str]",
    "int | str": "ir.Buffer | int | str",
    "AnyIndexMap": "IndexMap | Callable[..., Sequence[Any]]",
    "NewRanges": "IndexMap | Callable[..., Sequence[Any]]",
    "PadValue": "float | IndexMap | Callable[..., Any] | None",
    "Number | None": "float | ir.Expr | None",
}
_HEADER = '''"""Types of the schedule methods; written by `python -m blockwright.schedule.stub`."""

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.arith import IndexMap
from blockwright.schedule.engine.handle import BlockRV, ExprRV, LoopRV
from blockwright.schedule.engine.record import Primitive

class Facade:
    @property
    def unsafe(self) -> Unsafe: ...
    def _run(self, record: Primitive) -> Any: ...
'''
_UNSAFE = """
class Unsafe:
    def __init__(self, schedule: Facade) -> None: ...
    def _run(self, record: Primitive) -> Any: ...
"""


def stub_text() -> str:
    """The content of `facade.pyi`."""
    safe = "".join(_method(record) for record in PRIMITIVES)
    return _HEADER + safe + _UNSAFE + "".join(_method(record) for record in UNSAFE_PRIMITIVES)


def _method(record: type[Primitive]) -> str:
    parameters = ["self"]
    notes = dict(fields_of(record))
    for field in msgspec.structs.fields(record):
        note = notes[field.name]
        if field.name == record.variadic:
            inner = note.removeprefix("tuple[").removesuffix(", ...]")
            parameters.append(f"*{field.name}: {inner}")
            continue
        text = f"{field.name}: {_ACCEPTED.get(note, note)}"
        parameters.append(text if field.required else f"{text} = {_default(field.default)}")
    result = _RESULTS[record.returns]
    line = f"    def {record.method}({', '.join(parameters)}) -> {result}: ..."
    if len(line) <= 100:
        return line + "\n"
    inside = "".join(f"        {p},\n" for p in parameters)
    return f"    def {record.method}(\n{inside}    ) -> {result}: ...\n"


def _default(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def main() -> None:
    path = Path(__file__).with_name("facade.pyi")
    path.write_text(stub_text(), encoding="utf-8")
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
