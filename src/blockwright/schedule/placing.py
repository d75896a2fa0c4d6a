"""How a step is applied: also at a drawn place that is no loop (left where it is, or inlined), and
with iterators that stay independent."""

from __future__ import annotations

from blockwright.schedule.independence import with_independent_iterators
from blockwright.schedule.primitive.compute_at import ComputeAt
from blockwright.schedule.primitive.compute_inline import ComputeInline
from blockwright.schedule.record import Primitive
from blockwright.schedule.state import Place, State, Step


def applied(record: Primitive, state: State) -> Step:
    """Apply a record; `compute_at` follows what `sample_compute_location` drew."""
    if isinstance(record, ComputeAt):
        place = state.place(record.loop)
        if place is Place.ROOT:
            return Step(state.func)
        if place is Place.INLINE:
            return ComputeInline(record.block).apply(state)
    return with_independent_iterators(state, record.apply(state))
