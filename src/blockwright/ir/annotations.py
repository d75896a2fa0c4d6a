"""Loop and block annotations that the compiler acts on.

Any other key is kept, printed and ignored. Programs and schedules may also use the former name of
a key; the printer writes the current name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from blockwright.ir.stmt import For, ForKind, Stmt
from blockwright.support.former_names import FORMER_ANNOTATIONS


class Annotation(msgspec.Struct, frozen=True):
    """One annotation key.

    Attributes:
        key: name of the key in a program.
        on: kind of statement that carries it.
        value: description of the accepted values.
        effect: what the compiler does with it.
    """

    key: str
    on: Literal["loop", "block"]
    value: str
    effect: str


LOOP_PARTITION = "loop_partition"
TAIL_SPECIALIZATION = "tail_specialization"
NONTEMPORAL_STORES = "nontemporal_stores"
PREFETCH_READ = "prefetch_read"
PREFETCH_WRITE = "prefetch_write"
PREFETCH_SHARED = "prefetch_shared"
REGISTER_PRESSURE = "register_pressure"
LLVM_UNROLL = "llvm.unroll"
UNROLL_MAX_STEP = "pragma_auto_unroll_max_step"
UNROLL_EXPLICIT = "pragma_unroll_explicit"
PIPELINE_STAGE = "software_pipeline_stage"
PIPELINE_ORDER = "software_pipeline_order"
LAUNCH_THREAD = "launch_thread"
DOUBLE_BUFFER = "double_buffer_scope"
DIM_ALIGN = "buffer_dim_align"
REDUCER = "reducer"
EXPLICIT_READ = "explicit_read_region"

ANNOTATIONS: dict[str, Annotation] = {
    row.key: row
    for row in (
        Annotation(
            LOOP_PARTITION,
            "loop",
            "True",
            "lowering splits the loop where a condition on its variable changes",
        ),
        Annotation(
            TAIL_SPECIALIZATION,
            "loop",
            "a number of rows",
            "the last iteration gets its own body, specialized for that many remaining rows",
        ),
        Annotation(
            NONTEMPORAL_STORES,
            "loop",
            "a number of bytes",
            "results of at least that size that the loop writes and does not read are stored with "
            "non-temporal stores",
        ),
        Annotation(
            PREFETCH_READ,
            "loop",
            "a number of iterations",
            "data that the loop reads is prefetched that many iterations ahead of the loop "
            "around it",
        ),
        Annotation(
            PREFETCH_WRITE,
            "loop",
            "a number of iterations",
            "lines that the loop writes are prefetched in the same way, because a partial write "
            "reads the line first",
        ),
        Annotation(
            PREFETCH_SHARED,
            "loop",
            "a number of iterations",
            "data that every iteration of the loop reads is prefetched for a later iteration of "
            "the loop around it, one share per iteration",
        ),
        Annotation(
            REGISTER_PRESSURE,
            "loop",
            "1",
            "values that the loop does not use are spilled before it, so that its accumulators get "
            "all vector registers",
        ),
        Annotation(LLVM_UNROLL, "loop", "a factor", "LLVM unrolls the loop by the factor"),
        Annotation(
            UNROLL_MAX_STEP,
            "loop",
            "a number of statements",
            "loops inside are unrolled while the product of their extents stays below it",
        ),
        Annotation(
            UNROLL_EXPLICIT,
            "loop",
            "True or False",
            "unrolled loops are expanded in the program",
        ),
        Annotation(PIPELINE_STAGE, "loop", "a list of stages", "the loop is software-pipelined"),
        Annotation(PIPELINE_ORDER, "loop", "a list of positions", "order of the pipeline's stages"),
        Annotation(
            LAUNCH_THREAD,
            "loop",
            "1",
            "the axis spans the following statements, without synchronization at its end",
        ),
        Annotation(
            DOUBLE_BUFFER, "block", "a position of a write region", "the buffer is double-buffered"
        ),
        Annotation(
            DIM_ALIGN,
            "block",
            "lists of [write region, dimension, factor, offset]",
            "the stride of the dimension is a multiple of the factor, plus the offset",
        ),
        Annotation(
            REDUCER, "block", "a combiner", "the block updates a tuple by a declared combiner"
        ),
        Annotation(
            EXPLICIT_READ,
            "block",
            "names of buffers, or positions of read regions",
            "the stated regions are kept when the signature is inferred again",
        ),
    )
}
"""All keys with their descriptions."""

CACHE_HINTS = (
    NONTEMPORAL_STORES,
    PREFETCH_READ,
    PREFETCH_WRITE,
    PREFETCH_SHARED,
    REGISTER_PRESSURE,
)
"""Hints about caches and registers, on serial and parallel loops; they never change a result."""


def current_key(key: str) -> str:
    """The current name of an annotation key."""
    return FORMER_ANNOTATIONS.get(key, key)


def with_current_keys(annotations: Mapping[str, Any]) -> dict[str, Any]:
    """Annotations with former key names replaced by the current ones."""
    return {current_key(key): value for key, value in annotations.items()}


def cache_hint_problem(node: Stmt, key: str, value: object) -> str:
    """Why a statement cannot carry one of `CACHE_HINTS` with this value; "" if it can."""
    if not isinstance(node, For):
        return f"{key!r} belongs on a loop"
    if node.kind not in (ForKind.SERIAL, ForKind.PARALLEL):
        return f"{key!r} belongs on a serial or parallel loop, this one is {node.kind.value}"
    if key == REGISTER_PRESSURE:
        return "" if value == 1 else f"{key!r} is 1, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return f"{key!r} is {ANNOTATIONS[key].value}, not {value!r}"
    return ""
