"""Decisions on the vectors of a block inside a row, shared by the plans of several strategies."""

from __future__ import annotations

import msgspec

from blockwright.target import Target

# vector registers that suffice for several vectors of inputs and all constants of a reduction
_MANY_REGISTERS = 32
_VECTORS = 4  # most vectors of partial results that hide the latency of combining
_STEPS = 8  # reduction steps added at a time, so that sums in cache are loaded and stored rarely


class LanesPlan(msgspec.Struct, frozen=True):
    """How blocks inside a row are vectorized.

    Attributes:
        vector_bits: width of a vector.
        vectors: most vectors of partial results of a reduction.
        fused_vectors: the same for a reduction that computes its input in the same pass.
        steps: most steps of a reduction that are added to results in cache at a time.
        split_unknown: whether sums of unknown length are split into blocks.
    """

    vector_bits: int
    vectors: int = _VECTORS
    fused_vectors: int = _VECTORS
    steps: int = _STEPS
    split_unknown: bool = False


def lanes_plan(target: Target) -> LanesPlan:
    """The usual choice for a target."""
    many = target.vector_registers >= _MANY_REGISTERS
    return LanesPlan(target.vector_bits, fused_vectors=_VECTORS if many else 1)


def other_lanes(best: LanesPlan) -> list[LanesPlan]:
    """Plans that differ from the best one in one decision."""
    change = msgspec.structs.replace
    return [
        *(change(best, vectors=n, fused_vectors=min(n, best.fused_vectors)) for n in (1, 2, 8)),
        change(best, fused_vectors=1 if best.fused_vectors > 1 else best.vectors),
        *(change(best, steps=n) for n in (2, 4, 16)),
        *([change(best, vector_bits=best.vector_bits // 2)] if best.vector_bits > 128 else []),
    ]
