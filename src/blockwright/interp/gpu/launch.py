"""Run kernels: all threads of a block at once, as lanes; blocks one after the other.

A kernel nest opens one lane per thread when it begins, whichever axes its loops are bound to. A
loop over threads then only sets its variable to the position of each lane's thread, so loops bound
to the same axis refer to the same threads everywhere. Statements outside the loops of an axis are
run by all threads along it if they affect private memory, and by the first thread if they affect
memory that the threads share. An axis has a first thread even if its loops have no iterations.

Threads run in lockstep, one statement after the other. That is one of the possible orders;
`vector_clock` detects whether another order could give a different result. Threads synchronize

- at barriers in the program, which all of them have to reach;
- at the beginning and end of a nest of thread loops;
- between statements that contain blocks (of the program) which exchange values.
"""

from __future__ import annotations

import numpy as np

from blockwright.analysis.kernels import BLOCK_AXES, VIRTUAL_AXES
from blockwright.interp.blocks import BlockCompiler
from blockwright.interp.calls import CallGlobal, Run
from blockwright.interp.gpu.kernels import Launch, axis_key, leaves_in
from blockwright.interp.gpu.thread_block import ThreadBlock
from blockwright.interp.lanes import CompiledLoop, Env, Fn, RunState, compress, run_loop
from blockwright.ir import Block, For, SeqStmt, Stmt
from blockwright.ir.annotations import LAUNCH_THREAD


class LaunchCompiler(BlockCompiler):
    """Adds kernels."""

    def __init__(self, call_global: CallGlobal) -> None:
        super().__init__(call_global)
        self.launches: dict[For, Launch] = {}
        self.grid: dict[str, int] = {}  # blockIdx axis → slot of its position
        self.depths: dict[str, int] = {}  # virtual axis → number of open loops on it

    def kernels_begin(self, node: Stmt, run: Run) -> Run:
        """Run a statement after resetting the memory of multi-nest kernels that begin there."""
        nests = [n for n in self.launches.values() if n.home is node]
        if not nests:
            return run
        slots = {self.slot(b) for n in nests for b in n.owned.get(None, ())}

        def begin(env: Env) -> None:
            for slot in slots:
                env[slot] = None
            run(env)

        return begin

    def axis_loop(self, node: For) -> Run:
        """Compile a thread-bound loop; the outermost one is a launch."""
        tag = "" if node.thread is None else node.thread.thread_tag
        if self.launch is None:
            return self._launch(node)
        return self._block_axis(node, tag) if tag in BLOCK_AXES else self._thread_axis(node, tag)

    # ------------------------------------------------------------------------------- launches
    def _launch(self, node: For) -> Run:
        launch, site = self.launches[node], self.site(node)
        sizes = {key: self.index(extent) for key, extent in launch.extents.items()}
        self.launch, self.grid, self.depths = launch, {}, {}
        self.coordinates = {key: self.count + k for k, key in enumerate(sizes)}
        self.count += len(sizes)
        coordinates = self.coordinates
        mine = launch.owned.get(None, [])
        slots = [self.slot(b) for b in mine]
        memory = [
            (slot, self.new_buffer(b), self.copies_again(b))
            for slot, b in zip(slots, mine, strict=True)
        ]
        kept = launch.home is not None
        body = self.axis_loop(node)
        self.launch = None

        def run(env: Env) -> None:
            state: RunState = env[1]
            if state.team is not None or env[0] is not None:
                raise site.error(env, "BW757", "a kernel is launched inside another")
            team = ThreadBlock(
                {key: max(1, int(fn(env))) for key, fn in sizes.items()}, state.moment
            )
            state.team, inner = team, list(env)
            inner[0], inner[2] = team.count, np.arange(team.count)
            for key, slot in coordinates.items():
                inner[slot] = team.coordinates[key]
            try:
                for slot, anew, again in memory:
                    (again if kept and inner[slot] is not None else anew)(inner)
                for slot in slots:
                    env[slot] = inner[slot]  # for later nests of the kernel
                body(inner)
            finally:
                state.team, state.moment = None, team.clock.now + 1

        return run

    def _block_axis(self, node: For, tag: str) -> Run:
        low, extent = self.index(node.min), self.index(node.extent)
        known = self.grid.get(tag)
        slot = self._variable(node)
        if known is not None:
            return self._same_member(node, slot, low, extent, known)
        self.grid[tag] = slot
        assert self.launch is not None
        memory = [self.new_buffer(b) for b in self.launch.owned.get(node, ())]
        body = self.stmt(node.body)
        del self.grid[tag], self.visible[-1]
        header = CompiledLoop(node.loop_var.name, slot, low, extent, node.kind, False)

        def block(env: Env) -> None:
            env[1].team.begin()
            for step in memory:
                step(env)
            body(env)

        def run(env: Env) -> None:
            run_loop(env, header, block)

        return run

    def _thread_axis(self, node: For, tag: str) -> Run:
        depth = self.depths.get(tag, 0)
        key = axis_key(tag, depth)
        low, extent = self.index(node.min), self.index(node.extent)
        slot = self._variable(node)
        opened, self.opened = self.opened, tuple(dict.fromkeys((*self.opened, key)))
        self.depths[tag] = depth + (tag in VIRTUAL_AXES)
        self.axis_of[node.loop_var] = key
        inner = self._same_member(node, slot, low, extent, self.coordinates[key])
        self.opened, self.depths[tag] = opened, depth
        if opened or LAUNCH_THREAD in node.annotations:
            return inner

        def nest(env: Env) -> None:
            env[1].team.meet(env)
            inner(env)
            env[1].team.meet(env)

        return nest

    def _variable(self, node: For) -> int:
        slot = self.define(node.loop_var)
        self.visible.append((node.loop_var.name, slot))
        return slot

    def _same_member(self, node: For, slot: int, low: Fn, extent: Fn, at: int) -> Run:
        """Run the body for the thread position in slot `at`, if it is within the extent."""
        body = self.stmt(node.body)
        if self.visible[-1][1] == slot:
            del self.visible[-1]

        def member(env: Env) -> None:
            place = env[at]
            inside = place < extent(env)
            if not np.all(inside):
                if not np.any(inside):
                    return
                env = compress(env, inside)
            env[slot] = low(env) + env[at]
            body(env)

        return member

    # --------------------------------------------------------------------------------- waiting
    def sequence(self, node: SeqStmt) -> list[Run]:
        """The statements of a sequence, with barriers between those that exchange values."""
        return [run for part in node.seq for run in self.after_barrier(part)]

    def after_barrier(self, part: Stmt) -> list[Run]:
        """A statement, preceded by a barrier if it shares memory with blocks that have run."""
        rivals = self._rivals(part)
        run = self.stmt(part)
        return [_wait_for(rivals), run] if rivals else [run]

    def _rivals(self, part: Stmt) -> frozenset[Block]:
        launch = self.launch
        if launch is None:
            return frozenset()
        return frozenset(r for leaf in leaves_in(part, launch) for r in launch.rivals[leaf])


def _wait_for(rivals: frozenset[Block]) -> Run:
    def wait(env: Env) -> None:
        team: ThreadBlock = env[1].team
        if not team.ran.isdisjoint(rivals):
            team.meet(env)

    return wait
