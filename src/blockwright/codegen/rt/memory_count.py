"""Count the memory that a library takes for results and scratch, while someone watches.

`void @bw_memory_watch(ptr record)`, exported, starts counting into a record of two 64-bit numbers,
the bytes in use and their peak; null ends it. Bytes are those that callers asked for, without
rounding and headers. When nobody watches, an allocation loads one pointer for this.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.structs import Field, Global, Record, StructType
from blockwright.codegen.llvm.values import NULL, Value, int_const

_RECORD = StructType((Field("used", "i64"), Field("peak", "i64")))

_WATCHED = Global("bw.rt.watched", "ptr", initial="null")
"""The record, or null."""


@routine("bw_memory_watch", "void", "ptr", linkage="")
def bw_memory_watch(e: FunctionEmitter, record: Value) -> None:
    """Count into the record from now on; null stops counting."""
    _WATCHED.store(e, record, order="seq_cst")


@routine("bw_memory_taken", "void", "i64", linkage="hidden")
def bw_memory_taken(e: FunctionEmitter, nbytes: Value) -> None:
    """Count bytes that were allocated."""
    with _record(e) as record:
        before = e.update("add", record.place("used"), nbytes, "seq_cst")
        e.update("umax", record.place("peak"), e.binary("add", before, nbytes), "seq_cst")


@routine("bw_memory_given", "void", "i64", linkage="hidden")
def bw_memory_given(e: FunctionEmitter, nbytes: Value) -> None:
    """Count bytes that were released."""
    with _record(e) as record:
        e.update("add", record.place("used"), e.binary("sub", int_const(0), nbytes), "seq_cst")


@contextmanager
def _record(e: FunctionEmitter) -> Generator[Record]:
    """Code that runs only while someone watches."""
    watched = _WATCHED.load(e, order="seq_cst")
    with e.guarded(e.compare("ne", watched, NULL), likely=False):
        yield _RECORD.at(e, watched)
