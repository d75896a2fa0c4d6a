"""The threads of a running block: numbering, barriers, asynchronous copies, race detection."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.gpu.asynchronous import Barrier, BarrierPhase, Copies, Copy, Waits
from blockwright.interp.gpu.divergence import Branches
from blockwright.interp.gpu.vector_clock import Clock, ThreadShadow
from blockwright.interp.lanes import DID, Env, RunState, Site, pick, with_first
from blockwright.interp.memory import MemoryBlock, Touch, TypedView, coordinates, granules
from blockwright.interp.report import WARP, bank_conflict_cycles
from blockwright.ir import Block, Buffer
from blockwright.support import Diagnostic, InterpretError

Array = np.ndarray[Any, Any]


class ThreadBlock:
    """All threads of a block, numbered along `threadIdx.x` first.

    Attributes:
        extents: extent of each axis, in the order of numbering.
        count: total number of threads.
        coordinates: per axis, the position of each thread.
        warp, lane: of each thread; virtual threads are in separate warps.
        existing: per warp, the bit mask of existing lanes.
        due: whether a barrier of all threads is pending, not yet applied to `clock`.
        ran: blocks of the program that have run since the last barrier of the whole block.
        memory: shared allocations; a repeated allocation reuses the same bytes.
    """

    def __init__(self, extents: dict[str, int], start: int) -> None:
        self.extents = extents
        self.count = int(np.prod([*extents.values(), 1]))
        number = np.arange(self.count)
        self.coordinates: dict[str, Array] = {}
        rest = number
        for key, extent in extents.items():
            self.coordinates[key] = rest % extent
            rest = rest // extent
        hardware = int(np.prod([n for k, n in extents.items() if "#" not in k] + [1]))
        per_block = -(-hardware // WARP)
        self.lane = number % hardware % WARP
        self.warp = number // hardware * per_block + number % hardware // WARP
        self.warps = int(self.warp.max(initial=0)) + 1
        self.existing = np.zeros(self.warps, np.int64)
        np.bitwise_or.at(self.existing, self.warp, 1 << self.lane)
        self.clock = Clock(self.warp, start)
        self.copies = Copies()
        self.waits = Waits()
        self.branches = Branches()
        self.ran: set[Block] = set()
        self.memory: dict[Buffer, MemoryBlock] = {}
        self.due = False

    def begin(self) -> None:
        """Begin the next block: reset synchronization, copies and barriers."""
        self.clock.join_all()
        self.memory.clear()
        self.copies, self.waits = Copies(), Waits()
        self.ran.clear()

    def name(self, thread: int) -> str:
        """Describe a thread by its coordinates."""
        at = [f"{key.split('#')[0]} = {int(c[thread])}" for key, c in self.coordinates.items()]
        return "thread " + ", ".join(at) if at else "the only thread"

    # ------------------------------------------------------------------------------- waiting
    def complete(self, env: Env) -> bool:
        """Whether all threads are active."""
        lanes = env[0]
        return lanes == self.count or (lanes > self.count and len(np.unique(env[2])) == self.count)

    def meet(self, env: Env) -> None:
        """An implicit barrier, which takes effect only if all threads reach it."""
        if self.complete(env):
            self.due = True
            self.ran.clear()

    def barrier(self, env: Env, site: Site) -> None:
        """A barrier in the program, which all threads of the block have to reach."""
        if env[0] != self.count:
            here = np.zeros(self.count, bool)
            here[env[2]] = True
            missing = int(np.argmin(here))
            raise site.error(
                env,
                "BW762",
                f"{int(here.sum())} of {self.count} threads reach this barrier; "
                f"{self.name(missing)} does not",
                0,
                "move the barrier out of the condition: all threads of the block synchronize here",
            )
        self.meet(env)

    def warp_barrier(self, env: Env, site: Site) -> None:
        """A barrier of each active warp, which all of its threads have to reach."""
        here = np.zeros(self.count, bool)
        here[env[2]] = True
        for warp in np.unique(self.warp[env[2]]).tolist():
            members = np.flatnonzero(self.warp == warp)
            if not here[members].all():
                missing = int(members[np.argmin(here[members])])
                raise site.error(
                    env,
                    "BW762",
                    f"{int(here[members].sum())} of the {len(members)} threads of a "
                    f"warp reach this barrier; {self.name(missing)} does not",
                    0,
                    "move the barrier out of the condition",
                )
            self.settle()
            self.clock.join(members)

    def settle(self) -> None:
        """Apply a pending barrier to the clock."""
        if self.due:
            self.clock.join_all()
            self.due = False

    def check_begun(self, env: Env, site: Site, number: int, barrier: Barrier) -> None:
        """Check that the active threads have synchronized with the initialization of a barrier."""
        self.settle()
        who, when, there = barrier.begun
        known = self.clock.before(np.array(who), np.array(when), env[2])
        if not known.all():
            lane = int(np.argmin(known))
            raise self._race(
                env, site, f"barrier {number}", "read", int(env[2][lane]), "write", who, there
            )

    def land(
        self, env: Env, ended: list[tuple[Copy, Array]], phase: BarrierPhase | None = None
    ) -> None:
        """Complete copies: their writes happen now. `phase`: the barrier phase that ended them."""
        for copy, mask in ended:
            threads = copy.threads[mask]
            if env[1].races:
                ends = copy.names
                self.check(env, copy.site, ends[0], copy.target, copy.to[mask], threads, "write")
                self.check(env, copy.site, ends[1], copy.source, copy.origin[mask], threads, "read")
            if phase is not None:
                known = self.clock.released(np.unique(threads))
                phase.known = known if phase.known is None else np.maximum(phase.known, known)

    # -------------------------------------------------------------------------------- touching
    def touch(
        self,
        env: Env,
        site: Site,
        name: str,
        view: TypedView,
        where: Any,
        how: Touch,
        me: Array | None = None,
        wide: bool = False,
    ) -> None:
        """Record an access to memory shared by the threads; an error if it races.

        Args:
            me: the thread of each element, if not the thread of its lane.
            wide: whether each lane accesses a vector, which may be the same for all lanes.
        """
        state: RunState = env[1]
        places = np.asarray(where)
        threads = me
        if threads is None:
            threads = np.asarray(env[2])
            if wide and places.ndim == 1:
                places = places[None]
            if places.ndim == 2:
                threads = np.broadcast_to(threads[:, None], (len(threads), places.shape[1]))
            places = np.broadcast_to(places, threads.shape)
        if state.report is not None and view.storage.banked:
            self._count(env, site, name, view, places, how, threads)
        flat, mine = places.reshape(-1), threads.reshape(-1)
        if view.storage.flight is not None:
            self._in_flight(env, site, name, view, flat, mine, how)
        if state.races:
            self.check(env, site, name, view, flat, mine, how)

    def check(
        self, env: Env, site: Site, name: str, view: TypedView, flat: Array, me: Array, how: Touch
    ) -> None:
        """The race check alone, for accesses by the given threads."""
        self.settle()
        storage = view.storage
        cells = granules(view, flat)
        if len(cells) != len(flat):
            me = np.repeat(me, len(cells) // len(flat))
        if storage.threads is None:
            storage.threads = ThreadShadow(len(storage.raw) // storage.granule + 1)
        env[1].sites[site.number] = site
        met = storage.threads.touch(self.clock, cells, me, how, site.number)
        if met is None:
            return
        at = met.at * len(flat) // len(cells)
        lane = int(np.argmax(env[2] == me[met.at]))
        raise self._race(
            env,
            site,
            view_element(env, name, view, int(flat[at]), lane),
            how,
            int(me[met.at]),
            met.how,
            met.who,
            env[1].sites[met.site],
        )

    def _race(
        self,
        env: Env,
        site: Site,
        element: str,
        how: Touch,
        me: int,
        first: str,
        other: int,
        there: Site,
    ) -> InterpretError:
        lane = int(np.argmax(env[2] == me))
        same = there is site
        text = (
            f"race: {element} is {DID[how]} here by {self.name(me)} and {DID[first]} by "
            f"{self.name(other)}"
        )
        text += ", at the same place" if same else ", without a barrier between them"
        help = (
            "make the threads access different elements, or use an atomic operation"
            if same
            else 'synchronize the threads in between: T.tvm_storage_sync("shared")'
        )
        error = site.error(env, "BW761", text, lane, help)
        return error if same else with_first(error, there, DID[first], f" by {self.name(other)}")

    def _in_flight(
        self, env: Env, site: Site, name: str, view: TypedView, flat: Array, me: Array, how: Touch
    ) -> None:
        """Check that no element is accessed while a copy writes it, or written while it is read."""
        result = self.copies.meeting(view, flat, how)
        if result is None:
            return
        at, copy, thread = result
        began: Site = copy.site
        lane = int(np.argmax(env[2] == me[at]))
        element = view_element(env, name, view, int(flat[at]), lane)
        text = (
            f"{element} is {DID[how]} by {self.name(int(me[at]))} while the asynchronous copy "
            f"begun by {self.name(thread)} may still be in flight"
        )
        help = (
            "wait for the copy (T.ptx_commit_group, T.ptx_wait_group), then synchronize the threads"
        )
        error = site.error(env, "BW763", text, lane, help)
        second = Diagnostic("BW763", "the copy begins here", began.span)
        raise InterpretError(
            text, code="BW763", help=help, diagnostics=[*error.diagnostics, second]
        )

    @staticmethod
    def _count(
        env: Env, site: Site, name: str, view: TypedView, places: Array, how: Touch, me: Array
    ) -> None:
        report = env[1].report
        threads = me if me.ndim == 1 else me[:, 0]
        first = places if places.ndim == 1 else places.min(axis=1)
        width = 1 if places.ndim == 1 else places.shape[1]
        row = report.row(site.number, name, how, site.span, site.block)
        requests, turns = bank_conflict_cycles(
            threads, first * view.size + view.phase, width * view.size
        )
        row.requests += requests
        row.turns += turns


def view_element(env: Env, name: str, view: TypedView, flat: int, lane: int) -> str:
    """Describe an element of a view by its indices, as seen by a lane."""
    slot = next((k for k, v in enumerate(env) if v is view), None)
    base = 0 if slot is None else int(pick(env[slot + 1], lane))
    return f"{name}[{coordinates(flat - base, view)}]"
