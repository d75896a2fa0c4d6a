"""Keep workers off the caller's processor.

While other programs keep all processors busy, the system may schedule a worker on the caller's
processor and leave it there, because no other one is less loaded. The two then alternate, and the
region takes as long as on one thread. A worker that is about to join and runs on the caller's
processor removes that processor from its affinity mask first. At worst it then shares another
processor with another program.
"""

from __future__ import annotations

from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.routine import routine
from blockwright.codegen.llvm.values import FALSE, TRUE, Value, int_const
from blockwright.codegen.rt.threadpool_state import MASK_BYTES, system_call

THIS_THREAD = int_const(0, "i32")


def mask_word(e: FunctionEmitter, mask: Value, cpu: Value) -> tuple[Value, Value]:
    """The address of the word of an affinity mask that holds a processor's bit, and the bit's
    position."""
    word = e.convert("zext", e.binary("lshr", cpu, 6), "i64")
    bit = e.convert("zext", e.binary("and", cpu, 63), "i64")
    return e.offset(mask, word, 8), bit


def fits_mask(e: FunctionEmitter, cpu: Value) -> Value:
    """Whether an affinity mask has a bit for a processor; `cpu` is -1 if it is unknown."""
    return e.compare("ult", cpu, 8 * MASK_BYTES)


def copy_mask(e: FunctionEmitter, to: Value, source: Value) -> None:
    e.copy(to, source, MASK_BYTES)


def set_mask(e: FunctionEmitter, number: Value, mask: Value) -> Value:
    """Set the affinity mask of a thread; returns 0 on success."""
    return system_call(e, "sched_setaffinity", number, int_const(MASK_BYTES), mask)


def get_mask(e: FunctionEmitter, number: Value, mask: Value) -> Value:
    """Read the affinity mask of a thread; returns the number of bytes written, or -1."""
    return system_call(e, "sched_getaffinity", number, int_const(MASK_BYTES), mask)


@routine("bw.tp.allowed", "void", "ptr")
def read_mask(e: FunctionEmitter, mask: Value) -> None:
    """Read the affinity mask of this thread; all zero if the system has more processors than
    bits."""
    e.fill(mask, 0, MASK_BYTES)
    get_mask(e, THIS_THREAD, mask)


@routine("bw.tp.leave", "i1", "i32", "ptr", "ptr", attributes="noinline")
def leave(e: FunctionEmitter, cpu: Value, given: Value, chosen: Value) -> Value:
    """Move this thread away from a processor; return whether that worked.

    If the mask was changed externally since the last choice, the changed mask becomes the given
    one.
    """
    now = e.stack(MASK_BYTES, 64)
    with e.guarded(fits_mask(e, cpu)):
        read_mask.call(e, now)
        differs = e.call("i32", "memcmp", now, chosen, int_const(MASK_BYTES))
        with e.guarded(e.compare("ne", differs, 0)):
            copy_mask(e, given, now)
        copy_mask(e, chosen, given)
        place, bit = mask_word(e, chosen, cpu)
        others = e.binary("xor", e.binary("shl", int_const(1), bit), -1)
        e.store(e.binary("and", e.load("i64", place, 8), others), place, 8)
        status = set_mask(e, THIS_THREAD, chosen)
        with e.guarded(e.compare("eq", status, 0)):
            e.ret(TRUE)
        copy_mask(e, chosen, now)
    return FALSE
