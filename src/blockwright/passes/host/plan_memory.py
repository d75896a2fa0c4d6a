"""DynShapeAwareMemoryPlanning: assign intermediate values to shared memory.

Before:  lv0: (2, n), lv1: (n, 2), lv2: (n, 2), lv3: (2, n), one allocation each
After:   arena of 2 * 8*n bytes: lv0 and lv2 at 0, lv1 and lv3 at 8*n

A value gets an offset in the arena of the call, or in the memory of a result that is not written
yet. Sizes and offsets remain expressions; values share memory only if it is *proved* sufficient
for every value of the symbols. The entry or the caller provides the memory of results.

A value whose size is known only at run time is planned with the largest size. Where there is none,
an arena of its own level holds it (see `run_time_sizes`). A result of such a size gets its memory
when the size is known; no other value is placed in it.

`liveness` finds the live ranges, `in_place` results that overwrite operands, `size_order` compares
sizes, `packing` assigns offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.arith.form import Poly
from blockwright.ir.attributes import WORKSPACES
from blockwright.passes.host.in_place import in_place_calls
from blockwright.passes.host.liveness import Liveness, defined_values, live_ranges
from blockwright.passes.host.packing import Item, Region, pack
from blockwright.passes.host.run_time_sizes import RunTimeSizes
from blockwright.passes.host.size_order import ALIGNMENT, SizeOrder, aligned, exact_bytes
from blockwright.passes.rewrite import tir_callee


class Place(msgspec.Struct, frozen=True, eq=False):
    """Where a value is: bytes from the start of the arena, or of the memory of a result.

    Attributes:
        result: the value whose memory it is in; None for an arena.
        level: the load after which the arena is allocated; 0 for that of the call.
    """

    offset: ir.Expr
    result: ir.GraphVar | None = None
    level: int = 0


class PlannedValue(msgspec.Struct, frozen=True, eq=False):
    """A value of the plan with its live range, for reports and for comparisons with other plans.

    Attributes:
        size: bytes of its elements; result: whether it is one.
        first, last: positions of the bindings that compute it and that use it last.
    """

    name: str
    size: ir.Expr
    place: Place
    first: int
    last: int
    result: bool = False


class ArenaPlan(Liveness, kw_only=True):
    """The memory plan of one graph function.

    Attributes:
        place: value → where it is; results that are computed in place are not listed.
        values: all values that take memory, in the order of their definitions.
        over: value → the operand in whose memory it is computed while that is still read.
        in_place: called program → its parameters that share memory in a call (`IN_PLACE`).
        total: bytes of the arena as an expression of the symbols.
        late: level → bytes of the arena of values without a limit.
        sizes: the sizes known only at run time.
        unshared: bytes needed without sharing.
        upper_bound: bytes that the arena never exceeds; None if a symbol has no upper bound.
    """

    place: dict[ir.GraphVar, Place]
    values: tuple[PlannedValue, ...]
    over: dict[ir.GraphVar, ir.GraphVar]
    in_place: dict[str, dict[str, int]]
    total: ir.Expr
    late: dict[int, ir.Expr]
    sizes: RunTimeSizes
    unshared: ir.Expr
    upper_bound: int | None

    @property
    def whole(self) -> ir.Expr:
        """Bytes of all arenas."""
        total = self.total
        for more in self.late.values():
            total = ir.add(total, more)
        return total


def plan_memory(function: ir.GraphFunction, module: ir.IRModule) -> ArenaPlan:
    """Plan the storage of one graph function."""
    live, order = live_ranges(function, module), SizeOrder(function)
    run_time = RunTimeSizes(function)
    workspaces = _workspaces(function, module, live)
    sized = [v for v in live.first if _has_size(v)]
    later = {v for v in sized if v in live.results and run_time.level(*_shape(v))}
    needs = {v: _need(v, run_time) for v in sized}
    items = {
        v: Item(
            order.of(aligned(needs[v])),
            order.of(needs[v]),
            live.first[v],
            live.last[v],
            ALIGNMENT if v in workspaces else _element_bytes(v),
        )
        for v in sized
        if v not in later
    }
    sizes = {v: item.exact for v, item in items.items() if v not in workspaces}
    found = in_place_calls(function, module, live, sizes)
    groups: dict[ir.GraphVar, list[ir.GraphVar]] = {}
    for v in items:
        groups.setdefault(found.place_of(v), []).append(v)
    spans = {first: _together([items[v] for v in group]) for first, group in groups.items()}
    regions: dict[Region, ir.GraphVar] = {}
    place: dict[ir.GraphVar, Place] = {}
    for first, group in groups.items():
        if group[-1] in live.results:  # what it overwrites is in its memory, too
            region = Region(spans[first].exact, spans[first].first, spans[first].align)
            regions[region] = group[-1]
            place.update((v, Place(order.expr(order.zero), group[-1])) for v in group[:-1])
    levels: dict[int, list[ir.GraphVar]] = {0: []}
    for first, group in groups.items():
        if group[-1] not in live.results:
            levels.setdefault(run_time.level(needs[first]), []).append(first)
    totals: dict[int, Poly] = {}
    for level, inner in levels.items():
        free = [] if level else list(regions)
        packing = pack([spans[first] for first in inner], free, order)
        totals[level] = packing.total
        for first, p in zip(inner, packing.placements, strict=True):
            inside = None if p.region is None else regions[p.region]
            where = Place(order.expr(p.offset), inside, level)
            place.update((v, where) for v in groups[first])
    unshared = order.zero
    for v in (v for v in sized if v not in live.results):
        unshared = order.add(unshared, items[v].size)
    return ArenaPlan(
        **msgspec.structs.asdict(live),
        place=place,
        values=_listed(sized, needs, place, live),
        over=found.over,
        in_place=found.kernels,
        total=order.expr(totals[0]),
        late={level: order.expr(total) for level, total in totals.items() if level},
        sizes=run_time,
        unshared=order.expr(unshared),
        upper_bound=None if len(totals) > 1 else order.upper_bound(totals[0]),
    )


def _shape(value: ir.GraphVar) -> tuple[ir.Expr, ...]:
    return value.tensor_info.shape or ()


def _need(value: ir.GraphVar, sizes: RunTimeSizes) -> ir.Expr:
    """Bytes of the elements of a value, at most if there is a limit."""
    need = exact_bytes(value.tensor_info)
    most = sizes.largest(need)
    return need if most is None else most


def _together(items: Sequence[Item]) -> Item:
    """The memory of values that are computed one over the other, in order."""
    return msgspec.structs.replace(items[0], last=items[-1].last)


def _workspaces(
    function: ir.GraphFunction, module: ir.IRModule, live: Liveness
) -> set[ir.GraphVar]:
    """The values that are temporary memory of kernels."""
    result: set[ir.GraphVar] = set()
    for binding in function.bindings:
        name = tir_callee(binding.value) if isinstance(binding, ir.VarBinding) else None
        count = 0 if name is None else int(module[name].attrs.get(WORKSPACES, 0))
        if count:
            result.update(list(defined_values(live, binding))[-count:])
    return result


def _element_bytes(value: ir.GraphVar) -> int:
    dtype = value.tensor_info.dtype
    return 1 if dtype is None else dtype.nbytes


def _has_size(value: ir.GraphVar) -> bool:
    return isinstance(value.info, ir.TensorInfo) and value.info.shape is not None


def _listed(
    values: Sequence[ir.GraphVar],
    needs: Mapping[ir.GraphVar, ir.Expr],
    place: dict[ir.GraphVar, Place],
    live: Liveness,
) -> tuple[PlannedValue, ...]:
    own = ir.const(0, "int64")
    return tuple(
        PlannedValue(
            v.name,
            needs[v],
            place.get(v) or Place(own, v),
            live.first[v],
            live.last[v],
            v in live.results,
        )
        for v in values
    )
