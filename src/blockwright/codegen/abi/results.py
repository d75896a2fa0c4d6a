"""Checks of caller-provided result memory, as for written arguments.

    if count == inputs + results:        # lent
        data = the caller's memory, of the type, shape and layout of the result
        check that no result overlaps an argument or another result
    else:
        data = new tensors

Results of the same type and shape share the code of their checks, and overlaps are tested in loops:
a decoder model has dozens of results.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.codegen.abi.checks import ONE_COPY, OVERLAPS, Checker, plain
from blockwright.codegen.abi.symbols import Symbols
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.structs import Field, StructType
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Buffer

_RANGE = StructType((Field("label", "ptr"), Field("start", "ptr"), Field("size", "i64")))
"""A row of the table of memory ranges; sizes are in bytes."""


class LentResults:
    """Emits the checks into an entry, and the functions they call into its module."""

    def __init__(self, e: FunctionEmitter, check: Checker, symbols: Symbols) -> None:
        self.e, self.check, self.symbols = e, check, symbols
        self._known: dict[tuple[str, ...], str] = {}

    def take(self, slot: Value, label: str, buffer: Buffer, shape: Sequence[Value]) -> Value:
        """The data pointer of the result in an argument slot; the entry returns on a mismatch.

        Arguments: `shape` holds the extents of the result.
        """
        e = self.e
        texts = [self.symbols.expectation(extent) for extent in buffer.shape]
        numbers = (v.text if _is_constant(v) else "" for v in shape)
        key = (buffer.dtype.name, *(text for text, _ in texts), *numbers)
        if key not in self._known:
            self._known[key] = self._function(buffer, texts, shape)
        place = e.stack(8, 8)
        values = (v for v in shape if not _is_constant(v))
        name = e.module.string(label)
        status = e.call_local("i32", self._known[key], slot, name, place, *values)
        with e.guarded(e.compare("ne", status, int_const(0, "i32")), likely=False):
            e.ret(status)
        return e.load("ptr", place, 8)

    def _function(
        self, buffer: Buffer, texts: Sequence[tuple[str, str]], shape: Sequence[Value]
    ) -> str:
        """Emit `i32 @name(slot, label, pointer to the data pointer, dynamic extents …)`."""
        name = f"bw.result.{len(self._known)}"
        params = [("ptr", "slot"), ("ptr", "label"), ("ptr", "place")]
        params += [("i64", f"n{a}") for a, value in enumerate(shape) if not _is_constant(value)]
        e = FunctionEmitter(self.e.module, name, "i32", params, "nounwind noinline", "internal")
        check = Checker(e, self.check.function)
        slot, label, place, *sizes = e.params
        check.begin_named(label)
        tensor, extents = check.tensor(slot, buffer)
        given = iter(sizes)
        for axis, (result, value) in enumerate(zip(extents, shape, strict=True)):
            text, code = texts[axis]
            expected = value if _is_constant(value) else next(given)
            check.extent(axis, result, expected, text, code)
        check.contiguous(tensor)
        e.store(check.data(tensor, extents, buffer), place, 8)
        e.ret(int_const(0, "i32"))
        e.finish()
        return name

    def apart(self, rows: Sequence[tuple[str, Value, Value]], results: int) -> None:
        """Check that none of the last `results` ranges (label, start, bytes) overlaps an earlier
        one."""
        e = self.e
        table = e.stack(_RANGE.size * len(rows), 8)
        for number, (label, start, size) in enumerate(rows):
            memory = _RANGE.at(e, e.offset(table, _RANGE.size * number))
            memory.store("label", e.module.string(label))
            memory.store("start", start)
            memory.store("size", size)

        def row(index: Value) -> tuple[Value, tuple[Value, Value]]:
            memory = _RANGE.at(e, e.offset(table, index, _RANGE.size))
            start, size = memory.load("start"), memory.load("size")
            return memory.load("label"), (start, size)

        first, end = int_const(len(rows) - results), int_const(len(rows))
        with e.counted(first, end, nonempty=True) as written:
            label, memory = row(written)
            with e.counted(int_const(0), written, nonempty=False) as earlier:
                other, place = row(earlier)
                apart = self.check.apart(memory, place)
                with e.guarded(e.negated(apart), likely=False):
                    about = f"%s of {plain(self.check.function)}"
                    text = f"BW706: {about}: {OVERLAPS} %s\nhelp: {ONE_COPY}"
                    self.check.fail(text, "BW706", label, other)


def _is_constant(value: Value) -> bool:
    return value.text.lstrip("-").isdigit()
