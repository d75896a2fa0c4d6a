"""Wishes of loops about caches and registers: what they write leaves the caches alone, what they
will read is fetched ahead, their sums have the registers to themselves.

The annotation `streaming_stores: n` on a loop says that results of at least n bytes which the loop
writes, and does not read, are too large to be found in a cache later. Whole vectors of them are
then stored past the caches: a store to a line that is in no cache reads the line first otherwise.

The annotation `read_ahead: k` on a loop says that what the loop reads is also fetched for the
iteration k further on of the loop around it: while one row is worked on in the caches, the memory
brings the next.

The annotation `write_ahead: k` does the same for lines that the loop writes, which a processor
reads before it writes a part of them.

The annotation `read_ahead_shared: k` says that what the loop reads again in each of its iterations
is fetched for the iteration k further on of the loop around it, a share in each iteration: while a
panel is used for one tile of rows after the other, the next one comes.

The annotation `own_registers: 1` says that what the loop does not use is kept in memory while it
runs, and not in vector registers, which its own sums may fill.

None of them changes anything of what a program means.
"""

from __future__ import annotations

from collections.abc import Iterator

from blockwright import ir

STREAMING, READ_AHEAD, WRITE_AHEAD = "streaming_stores", "read_ahead", "write_ahead"
READ_AHEAD_SHARED = "read_ahead_shared"
OWN_REGISTERS = "own_registers"
KEYS = (STREAMING, READ_AHEAD, WRITE_AHEAD, READ_AHEAD_SHARED, OWN_REGISTERS)
_KINDS = (ir.ForKind.SERIAL, ir.ForKind.PARALLEL)


def streaming_problem(node: ir.Stmt, key: str, value: object) -> str:
    """Why one of these annotations cannot stand on a statement; "" where it can."""
    if not isinstance(node, ir.For):
        return f"{key!r} belongs on a loop"
    if node.kind not in _KINDS:
        return f"{key!r} belongs on a serial or parallel loop, this one is {node.kind.value}"
    if key == OWN_REGISTERS:
        return "" if value == 1 else f"{key!r} is 1, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return (
            f"{key!r} is a number of {'bytes' if key == STREAMING else 'iterations'}, not {value!r}"
        )
    return ""


def streamed_buffers(loop: ir.For) -> Iterator[ir.Buffer]:
    """Buffers that a loop writes and does not read, each once."""
    read = {load.buffer for load in ir.collect(loop.body, ir.BufferLoad)}
    own = {node.buffer for node in ir.collect(loop.body, ir.Allocate)}
    stores = (store.buffer for store in ir.collect(loop.body, ir.BufferStore))
    for buffer in dict.fromkeys(stores):
        if buffer not in read and buffer not in own and buffer.scope in ("", "global"):
            yield buffer
