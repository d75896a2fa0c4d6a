"""Compile asynchronous copies and counting barriers; see `asynchronous` for their state."""

from __future__ import annotations

import numpy as np

from blockwright.interp.calls import CallCompiler
from blockwright.interp.gpu.asynchronous import Barrier, Copy
from blockwright.interp.gpu.place import AddressedMemory, constant_of
from blockwright.interp.gpu.thread_block import ThreadBlock
from blockwright.interp.lanes import Env, Fn, Site, compress
from blockwright.ir import Call


class CopyCompiler(CallCompiler):
    """Adds asynchronous copies and counting barriers."""

    def _copy(self, expr: Call) -> Fn:
        """`T.ptx_cp_async(type, to, offset, from, offset, bytes[, condition])`.

        The `_bulk` variant has the number of a barrier instead of the condition.
        """
        to, source = AddressedMemory(self, *expr.args[0:2]), AddressedMemory(self, *expr.args[2:4])
        nbytes, site, size = constant_of(expr, 4), self.site(expr), to.dtype.nbytes
        bulk = expr.op.endswith("bulk")
        if size != source.dtype.nbytes or nbytes % size or (nbytes not in (4, 8, 16) and not bulk):
            raise ValueError("whole elements of one type, 4, 8 or 16 bytes")
        extra = self.index(expr.args[5]) if len(expr.args) > 5 else None
        steps = np.arange(nbytes // size)

        def copy(env: Env) -> int:
            team: ThreadBlock = env[1].team
            where, origin = (p.at(env)[:, None] + steps for p in (to, source))
            target, view = to.view(env, site, where), env[source.slot]
            for place, first in ((target, where), (view, origin)):
                if np.any((first[:, 0] * size + place.phase) % min(nbytes, 16)):
                    raise site.error(
                        env,
                        "BW758",
                        f"a copy of {nbytes} bytes does not start at a "
                        f"multiple of {min(nbytes, 16)}",
                        0,
                    )
            if extra is not None and not bulk and not np.all(extra(env)):
                taken = np.broadcast_to(np.asarray(extra(env)) != 0, env[0])
                zero = compress(env, ~taken)
                to.write(zero, site, where[~taken], to.dtype.numpy().type(0))
                env = compress(env, taken)
                where, origin = where[taken], origin[taken]
            values = source.read(env, site, origin)
            to.write(env, site, where, values)
            threads = np.repeat(env[2], len(steps))
            group = np.repeat(team.copies.groups(env[2]), len(steps))
            names = to.buffer.name, source.buffer.name
            begun = Copy(
                site,
                names,
                target,
                where.reshape(-1),
                view,
                origin.reshape(-1),
                threads,
                group,
                np.ones(len(threads), bool),
                bulk,
            )
            team.copies.begin(begun)
            if bulk and extra is not None:
                barrier = self._barrier_of(env, site, extra)
                barrier.current.bytes -= nbytes * env[0]
                barrier.current.copies.append((begun, begun.waiting))
                barrier.settle()
                team.branches.news += 1
            return 0

        return copy

    def _commit(self, expr: Call) -> Fn:
        def commit(env: Env) -> int:
            env[1].team.copies.commit(env[2])
            return 0

        return commit

    def _wait_group(self, expr: Call) -> Fn:
        """`T.ptx_wait_group(n)`: wait until only the last n groups of the thread are in flight."""
        largest = constant_of(expr, 0)

        def wait(env: Env) -> int:
            team: ThreadBlock = env[1].team
            team.land(env, team.copies.ended(env[2], largest))
            return 0

        return wait

    # ------------------------------------------------------------------------- counting barriers
    def _create(self, expr: Call) -> Fn:
        return lambda env: 0

    def _barrier_of(self, env: Env, site: Site, number: Fn) -> Barrier:
        team: ThreadBlock = env[1].team
        at = np.unique(np.asarray(number(env)))
        if len(at) > 1:
            raise site.error(
                env,
                "BW757",
                "threads use different barriers at the same time",
                help="put each use under a separate condition",
            )
        barrier = team.waits.barriers.get(int(at[0]))
        if barrier is None:
            raise site.error(
                env,
                "BW765",
                f"barrier {int(at[0])} has no thread count",
                help="T.ptx_init_barrier_thread_count(barrier, threads)",
            )
        if env[1].races:
            team.check_begun(env, site, int(at[0]), barrier)
        return barrier

    def _expect(self, expr: Call) -> Fn:
        """`T.ptx_init_barrier_thread_count(barrier, threads)`."""
        number, count = self.index(expr.args[0]), constant_of(expr, 1)
        site = self.site(expr)

        def expect(env: Env) -> int:
            team: ThreadBlock = env[1].team
            team.settle()
            for at in np.unique(np.asarray(number(env))).tolist():
                begun = int(env[2][0]), team.clock.now, site
                team.waits.barriers[at] = Barrier(count, team.count, begun)
            return 0

        return expect

    def _arrive(self, expr: Call) -> Fn:
        """`T.ptx_arrive_barrier(barrier)`; the `_expect_tx` variant also announces bytes."""
        number, site = self.index(expr.args[0]), self.site(expr)
        nbytes = constant_of(expr, 1) if expr.op.endswith("_tx") else 0

        def arrive(env: Env) -> int:
            team: ThreadBlock = env[1].team
            barrier = self._barrier_of(env, site, number)
            team.settle()
            team.branches.news += 1
            known = team.clock.released(env[2])
            for _ in range(env[0]):
                barrier.current.bytes += nbytes
                barrier.arrive(known)
                barrier.settle()
            return 0

        return arrive

    def _arrive_with_copies(self, expr: Call) -> Fn:
        """`T.ptx_cp_async_barrier(barrier)`: its phase also waits for these threads' copies."""
        number, site = self.index(expr.args[0]), self.site(expr)

        def attach(env: Env) -> int:
            team: ThreadBlock = env[1].team
            barrier = self._barrier_of(env, site, number)
            barrier.current.copies += team.copies.arriving(env[2])
            return 0

        return attach

    def _wait_barrier(self, expr: Call) -> Fn:
        """`T.ptx_wait_barrier(barrier)`: wait for the next phase of the barrier.

        That is the first phase that the thread has not waited for.
        """
        number, site = self.index(expr.args[0]), self.site(expr)

        def wait(env: Env) -> int:
            team: ThreadBlock = env[1].team
            barrier = self._barrier_of(env, site, number)
            while not barrier.over(env[2]).all() and team.branches.wait():
                pass
            over = barrier.over(env[2])
            if not over.all():
                lane, phase = int(np.argmin(over)), barrier.current
                text = (
                    f"{team.name(int(env[2][lane]))} waits for a phase of a barrier at which "
                    f"{phase.arrived} of {barrier.expected} threads have arrived"
                )
                raise site.error(
                    env,
                    "BW765",
                    text,
                    lane,
                    "make all counted threads arrive before any of them waits",
                )
            team.settle()
            numbers: list[int] = np.unique(barrier.waited[env[2]]).tolist()
            for past in numbers:
                phase = barrier.phases[past]
                team.land(env, team.copies.end(phase.copies), phase)
                waiting = env[2][barrier.waited[env[2]] == past]
                if phase.known is not None:
                    team.clock.acquire(waiting, phase.known)
            barrier.waited[env[2]] += 1
            return 0

        return wait
