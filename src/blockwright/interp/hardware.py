"""Operations of GPUs: barriers, warps, matrix fragments, asynchronous copies.

Each method compiles one operation; its lane semantics are in `warp` and `fragments`. What an
operation touches is checked as loads and stores are, each element on behalf of a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from blockwright.interp import fragments
from blockwright.interp.access import unwritten
from blockwright.interp.asynchronous import Barrier, Copy
from blockwright.interp.calls import CallCompiler
from blockwright.interp.lanes import Env, Fn, Site, compress, pick
from blockwright.interp.memory import View
from blockwright.interp.team import Team
from blockwright.interp.warp import WARP, Absent, Lanes
from blockwright.ir import BufferLoad, Call, Expr, StringImm, const_int
from blockwright.support import InterpretError

Array = np.ndarray[Any, Any]


class Place:
    """Memory that an operation is given the address of."""

    def __init__(self, compiler: CallCompiler, expr: Expr, offset: Expr | None = None) -> None:
        load = expr.args[0] if isinstance(expr, Call) and expr.op == "address_of" else None
        if not isinstance(load, BufferLoad) or load.buffer.dtype.lanes > 1:
            raise InterpretError("the operation takes the address of an element of a buffer",
                                 code="BW757", span=expr.span or compiler.here,
                                 help="write A.data or T.address_of(A[i, j])")  # fmt: skip
        self.buffer, self.dtype = load.buffer, load.buffer.dtype
        self.slot = compiler.slot(load.buffer)
        self.watched = compiler.watched(load.buffer)
        self._at = compiler.position(load.buffer, load.indices, None)
        self._offset: Fn = (lambda env: 0) if offset is None else compiler.index(offset)

    def at(self, env: Env) -> Array:
        """Positions of the element given, one per lane."""
        return np.broadcast_to(self._at(env) + self._offset(env), env[0])

    def read(self, env: Env, site: Site, where: Array, me: Array | None = None) -> Array:
        """Elements at positions; `me`: their threads, where those are not the lanes'."""
        view = self._inside(env, site, where)
        if view.shadow is not None:
            seen = view.shadow[where]
            if seen.min(initial=view.ones) < view.ones:
                wide = where.shape[1] if where.ndim == 2 else 1
                raise unwritten(env, site, self.buffer.name, view, where, seen, wide)
        if self.watched:
            env[1].team.touch(env, site, self.buffer.name, view, where, "read", me)
        return view.data[where]

    def write(self, env: Env, site: Site, where: Array, value: Any) -> None:
        """Set elements at positions."""
        view = self._inside(env, site, where)
        if self.watched:
            env[1].team.touch(env, site, self.buffer.name, view, where, "write")
        if view.shadow is not None:
            view.shadow[where] = view.ones
        view.data[where] = value

    def view(self, env: Env, site: Site, where: Array) -> View:
        """The view, once all positions are known to lie in it."""
        return self._inside(env, site, where)

    def _inside(self, env: Env, site: Site, where: Array) -> View:
        view: View = env[self.slot]
        base = env[self.slot + 1]
        if type(base) is np.ndarray and where.ndim == 2:
            base = base[:, None]
        bad = (where < base) | (where >= base + view.reach())
        if bad.any():
            first = int(np.argmax(bad.reshape(-1)))
            lane = first // (where.shape[1] if where.ndim == 2 else 1)
            start = int(pick(env[self.slot + 1], lane))
            raise site.error(env, "BW751", f"element {int(where.reshape(-1)[first]) - start} of "
                             f"{self.buffer.name} is outside the buffer, which has {view.reach()}",
                             lane)  # fmt: skip
        return view


class HardwareCompiler(CallCompiler):
    """Adds operations of GPUs to expressions."""

    _hardware: ClassVar[dict[str, str]] = {
        "tvm_storage_sync": "_barrier", "tvm_warp_activemask": "_active",
        "tvm_warp_shuffle": "_shuffled", "tvm_warp_shuffle_up": "_shuffled",
        "tvm_warp_shuffle_down": "_shuffled", "tvm_warp_shuffle_xor": "_shuffled",
        "tvm_warp_ballot": "_vote", "tvm_warp_any": "_vote", "tvm_warp_all": "_vote",
        "tvm_thread_invariant": "_invariant",
        "ptx_ldmatrix": "_ldmatrix", "ptx_mma": "_mma", "mma_fill": "_mma_fill",
        "mma_store": "_mma_store",
        "tvm_fill_fragment": "_fill_fragment", "tvm_load_matrix_sync": "_load_fragment",
        "tvm_store_matrix_sync": "_store_fragment", "tvm_mma_sync": "_multiply_fragments",
        "ptx_cp_async": "_copy", "ptx_cp_async_bulk": "_copy", "ptx_commit_group": "_commit",
        "ptx_wait_group": "_wait_group", "create_barriers": "_create",
        "ptx_init_barrier_thread_count": "_expect", "ptx_arrive_barrier": "_arrive",
        "ptx_arrive_barrier_expect_tx": "_arrive", "ptx_cp_async_barrier": "_arrive_with_copies",
        "ptx_wait_barrier": "_wait_barrier",
    }  # fmt: skip

    def _effect(self, expr: Call) -> Fn:
        method = self._hardware.get(expr.op)
        if method is None:
            return super()._effect(expr)
        if self.launch is None:
            if expr.op == "tvm_storage_sync":
                return lambda env: 0
            raise InterpretError(f"{expr.op} stands in no kernel", code="BW757",
                                 span=expr.span or self.here,
                                 help="bind loops around it to thread axes")  # fmt: skip
        compile_: Callable[[Call], Fn] = getattr(self, method)
        try:
            return compile_(expr)
        except (IndexError, ValueError) as error:
            raise InterpretError(f"{expr.op} has not the arguments it takes: {error}", code="BW757",
                                 span=expr.span or self.here) from None  # fmt: skip

    # -------------------------------------------------------------------------------- barriers
    def _barrier(self, expr: Call) -> Fn:
        """`T.tvm_storage_sync(scope)`: all threads of a block, or of a warp, wait for each other."""
        scope, site = _text(expr.args[0]), self.site(expr)
        if scope == "warp":
            return lambda env: env[1].team.warp_barrier(env, site)
        if not scope.startswith("shared"):
            raise InterpretError(f"a barrier for {scope!r}: blocks of a kernel run one after "
                                 "another and do not wait for each other", code="BW757",
                                 span=site.span, help='write T.tvm_storage_sync("shared"), or '
                                 "begin a new kernel")  # fmt: skip
        return lambda env: env[1].team.barrier(env, site)

    # ----------------------------------------------------------------------------------- warps
    def _active(self, expr: Call) -> Fn:
        return lambda env: _lanes(env).active().astype(np.uint32)

    def _invariant(self, expr: Call) -> Fn:
        return self.value(expr.args[0])

    def _shuffled(self, expr: Call) -> Fn:
        """`T.tvm_warp_shuffle…(mask, value, lane or distance, width, warp size)`."""
        mask, value = self.value(expr.args[0]), self.value(expr.args[1])
        by, width, site = self.index(expr.args[2]), self._constant_of(expr, 3), self.site(expr)
        how = {"": "index", "_up": "up", "_down": "down", "_xor": "across"}[
            expr.op.removeprefix("tvm_warp_shuffle")]  # fmt: skip
        if width not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"the width {width} is no power of two up to 32")
        name = expr.op

        def shuffle(env: Env) -> Any:
            lanes = _lanes(env)
            own = np.asarray(value(env))
            own = np.broadcast_to(own, (env[0], *own.shape[1:]))
            return _checked(env, site, name, lanes, mask(env),
                            lambda: lanes.shuffle(how, own, by(env), width))  # fmt: skip

        return shuffle

    def _vote(self, expr: Call) -> Fn:
        """`T.tvm_warp_ballot(mask, condition)`, `_any`, `_all`."""
        mask, condition = self.value(expr.args[0]), self.condition(expr.args[1])
        site, name = self.site(expr), expr.op

        def vote(env: Env) -> Any:
            lanes = _lanes(env)
            holds = np.broadcast_to(np.asarray(condition(env)) != 0, env[0])
            votes = _checked(env, site, name, lanes, mask(env), lambda: lanes.ballot(holds))
            if name == "tvm_warp_ballot":
                return votes.astype(np.uint32)
            return votes != 0 if name == "tvm_warp_any" else votes == lanes.active()

        return vote

    # --------------------------------------------------------------------------------- matrices
    def _ldmatrix(self, expr: Call) -> Fn:
        """`T.ptx_ldmatrix(transposed, number, type, to, offset, from, offset)`."""
        transposed, number = bool(self._constant_of(expr, 0)), self._constant_of(expr, 1)
        to, source = Place(self, *expr.args[3:5]), Place(self, *expr.args[5:7])
        site, size = self.site(expr), source.dtype.nbytes
        if number not in (1, 2, 4) or to.dtype is not source.dtype or (transposed and size != 2):
            raise ValueError("1, 2 or 4 matrices, of one type; of 16 bits to be transposed")
        row = 16 // size

        def load(env: Env) -> int:
            whole = _warps(env, site, expr.op)
            first = source.at(env).reshape(-1, WARP)[:, : 8 * number].reshape(-1)
            view: View = env[source.slot]
            if np.any((first * size + view.phase) % 16):
                raise site.error(env, "BW758", "a row for ldmatrix does not start at a multiple of "
                                 "16 bytes", 0)  # fmt: skip
            here = compress(env, (np.arange(env[0]) % WARP) < 8 * number)
            rows = source.read(here, site, first[:, None] + np.arange(row))
            matrices = rows.reshape(whole, number, 8, row)
            held = fragments.loaded(matrices, transposed)  # [warp, number, lane, packed]
            values = held.transpose(0, 2, 1, 3).reshape(env[0], -1)
            to.write(env, site, to.at(env)[:, None] + np.arange(values.shape[1]), values)
            return 0

        return load

    def _mma(self, expr: Call) -> Fn:
        """`T.ptx_mma(type, shape, "row", "col", types of A, B, C, A, offset, B, offset, C, offset,
        saturate)`."""
        shape, types = _text(expr.args[0]), [_text(a) for a in expr.args[3:6]]
        a, b, c = (Place(self, *expr.args[k : k + 2]) for k in (6, 8, 10))
        bits, depth = a.dtype.bits, int(shape.removeprefix("m16n8k") or 0)
        if (not shape.startswith("m16n8k") or depth not in fragments.DEPTHS.get(bits, ())
                or [_text(x) for x in expr.args[1:3]] != ["row", "col"]
                or b.dtype.bits != bits):  # fmt: skip
            known = "m16n8 by k4, k8 (32 bits), k8, k16 (16 bits), k16, k32 (8 bits), row by col"
            raise ValueError(f"the interpreter multiplies {known}; not {shape} of {types}")
        layouts = fragments.left(depth, bits), fragments.right(depth, bits), fragments.result()
        site, kind = self.site(expr), c.dtype

        def multiply(env: Env) -> int:
            whole = _warps(env, site, expr.op)
            full: list[Array] = []
            for place, table, sizes in zip((a, b, c), layouts, ((16, depth), (depth, 8), (16, 8)),
                                           strict=True):  # fmt: skip
                where = place.at(env)[:, None] + np.arange(table.rows.shape[1])
                held = place.read(env, site, where).reshape(whole, WARP, -1)
                if bits == 32 and place is not c:
                    held = fragments.shortened(held)
                matrix = np.zeros((whole, *sizes), held.dtype)
                matrix[:, table.rows, table.columns] = held
                full.append(matrix)
            total = fragments.product(full[0], full[1], full[2], kind)
            table = layouts[2]
            values = total[:, table.rows, table.columns].reshape(env[0], -1)
            c.write(env, site, c.at(env)[:, None] + np.arange(values.shape[1]), values)
            return 0

        return multiply

    def _mma_fill(self, expr: Call) -> Fn:
        """`T.mma_fill(type, number, to, offset)`: zeros."""
        number, to = self._constant_of(expr, 0), Place(self, *expr.args[1:3])
        site = self.site(expr)

        def fill(env: Env) -> int:
            to.write(env, site, to.at(env)[:, None] + np.arange(number), to.dtype.numpy().type(0))
            return 0

        return fill

    def _mma_store(self, expr: Call) -> Fn:
        """`T.mma_store(type, m, n, to, from, offset, stride)`: a result of 16 × 16."""
        if [self._constant_of(expr, k) for k in (0, 1)] != [16, 16]:
            raise ValueError("results have 16 × 16 elements")
        to, source = Place(self, expr.args[2]), Place(self, *expr.args[3:5])
        stride, table, site = self.index(expr.args[5]), fragments.square(), self.site(expr)

        def store(env: Env) -> int:
            whole = _warps(env, site, expr.op)
            held = source.read(env, site, source.at(env)[:, None] + np.arange(8))
            rows, columns = (np.tile(x, (whole, 1)) for x in table)
            where = to.at(env)[:, None] + rows * np.reshape(stride(env), (-1, 1)) + columns
            to.write(env, site, where, held)
            return 0

        return store

    def _fragment(self, expr: Call, first: int, index: int) -> tuple[Place, Fn, tuple[int, int]]:
        """A fragment argument, its number in the buffer, and its rows and columns."""
        m, n, k = (self._constant_of(expr, first + i) for i in (1, 2, 3))
        place = Place(self, expr.args[first])
        scope = place.buffer.scope
        sizes = (m, k) if scope == "wmma.matrix_a" else (k, n) if scope == "wmma.matrix_b" else (
            m, n)  # fmt: skip
        known = self.fragment_sizes.setdefault(place.buffer, sizes)
        if known != sizes:
            raise ValueError(f"{place.buffer.name} holds fragments of {known}, not of {sizes}")
        return place, self.index(expr.args[index]), sizes

    def _fill_fragment(self, expr: Call) -> Fn:
        """`T.tvm_fill_fragment(fragment, m, n, k, index, value)`."""
        to, index, (m, n) = self._fragment(expr, 0, 4)
        value, site = self.value(expr.args[5]), self.site(expr)

        def fill(env: Env) -> int:
            one = _one_lane(env, site, expr.op)
            to.write(one, site, _elements(one, to, index, m * n), _column(value(one)))
            return 0

        return fill

    def _load_fragment(self, expr: Call) -> Fn:
        """`T.tvm_load_matrix_sync(fragment, m, n, k, index, from, stride, layout)`."""
        to, index, sizes = self._fragment(expr, 0, 4)
        source, stride = Place(self, expr.args[5]), self.index(expr.args[6])
        layout, site = _text(expr.args[7]), self.site(expr)

        def load(env: Env) -> int:
            one = _one_lane(env, site, expr.op)
            where = _matrix(one, source, stride, sizes, layout)
            values = source.read(one, site, where)
            to.write(one, site, _elements(one, to, index, sizes[0] * sizes[1]), values)
            return 0

        return load

    def _store_fragment(self, expr: Call) -> Fn:
        """`T.tvm_store_matrix_sync(fragment, m, n, k, index, to, stride, layout)`."""
        source, index, sizes = self._fragment(expr, 0, 4)
        to, stride = Place(self, expr.args[5]), self.index(expr.args[6])
        layout, site = _text(expr.args[7]), self.site(expr)

        def store(env: Env) -> int:
            one = _one_lane(env, site, expr.op)
            values = source.read(one, site, _elements(one, source, index, sizes[0] * sizes[1]))
            to.write(one, site, _matrix(one, to, stride, sizes, layout), values)
            return 0

        return store

    def _multiply_fragments(self, expr: Call) -> Fn:
        """`T.tvm_mma_sync(D, index, A, index, B, index, C, index)`: D = A @ B + C."""
        places = [Place(self, expr.args[k]) for k in (0, 2, 4, 6)]
        indices = [self.index(expr.args[k]) for k in (1, 3, 5, 7)]
        site, sizes = self.site(expr), self.fragment_sizes

        def multiply(env: Env) -> int:
            one = _one_lane(env, site, expr.op)
            full: list[Array] = []
            for place, index in zip(places[1:], indices[1:], strict=True):
                shape = sizes.get(place.buffer, (16, 16))
                where = _elements(one, place, index, shape[0] * shape[1])
                full.append(place.read(one, site, where).reshape(-1, *shape))
            total = fragments.product(full[0], full[1], full[2], places[0].dtype)
            flat = total.reshape(one[0], -1)
            where = _elements(one, places[0], indices[0], flat.shape[1])
            places[0].write(one, site, where, flat)
            return 0

        return multiply

    # --------------------------------------------------------------------- asynchronous copies
    def _copy(self, expr: Call) -> Fn:
        """`T.ptx_cp_async(type, to, offset, from, offset, bytes[, condition])`, and `_bulk` with
        the number of a barrier instead of the condition."""
        to, source = Place(self, *expr.args[0:2]), Place(self, *expr.args[2:4])
        nbytes, site, size = self._constant_of(expr, 4), self.site(expr), to.dtype.nbytes
        bulk = expr.op.endswith("bulk")
        if size != source.dtype.nbytes or nbytes % size or (nbytes not in (4, 8, 16) and not bulk):
            raise ValueError("whole elements of one type, 4, 8 or 16 bytes")
        extra = self.index(expr.args[5]) if len(expr.args) > 5 else None
        steps = np.arange(nbytes // size)

        def copy(env: Env) -> int:
            team: Team = env[1].team
            where, origin = (p.at(env)[:, None] + steps for p in (to, source))
            target, view = to.view(env, site, where), env[source.slot]
            for place, first in ((target, where), (view, origin)):
                if np.any((first[:, 0] * size + place.phase) % min(nbytes, 16)):
                    raise site.error(env, "BW758", f"a copy of {nbytes} bytes does not start at a "
                                     f"multiple of {min(nbytes, 16)}", 0)  # fmt: skip
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
            begun = Copy(site, target, where.reshape(-1), view, origin.reshape(-1), threads, group,
                         np.ones(len(threads), bool), bulk)  # fmt: skip
            team.copies.begin(begun)
            if bulk and extra is not None:
                barrier = self._barrier_of(env, site, extra)
                barrier.current.bytes -= nbytes * env[0]
                barrier.current.copies.append((begun, begun.waiting))
                barrier.settle()
            return 0

        return copy

    def _commit(self, expr: Call) -> Fn:
        def commit(env: Env) -> int:
            env[1].team.copies.commit(env[2])
            return 0

        return commit

    def _wait_group(self, expr: Call) -> Fn:
        """`T.ptx_wait_group(n)`: all groups of the thread but the last n have been copied."""
        most = self._constant_of(expr, 0)

        def wait(env: Env) -> int:
            team: Team = env[1].team
            team.land(env, team.copies.ended(env[2], most))
            return 0

        return wait

    # ------------------------------------------------------------------------- counting barriers
    def _create(self, expr: Call) -> Fn:
        return lambda env: 0

    def _barrier_of(self, env: Env, site: Site, number: Fn) -> Barrier:
        team: Team = env[1].team
        at = np.unique(np.asarray(number(env)))
        barrier = team.waits.barriers.get(int(at[0])) if len(at) == 1 else None
        if barrier is None:
            raise site.error(env, "BW765", f"barrier {int(at[0])} has not been given its number of "
                             "threads", help="T.ptx_init_barrier_thread_count(barrier, threads)")  # fmt: skip
        return barrier

    def _expect(self, expr: Call) -> Fn:
        """`T.ptx_init_barrier_thread_count(barrier, threads)`."""
        number, count = self.index(expr.args[0]), self._constant_of(expr, 1)

        def expect(env: Env) -> int:
            team: Team = env[1].team
            for at in np.unique(np.asarray(number(env))).tolist():
                team.waits.barriers[at] = Barrier(count, team.count)
            return 0

        return expect

    def _arrive(self, expr: Call) -> Fn:
        """`T.ptx_arrive_barrier(barrier)`; with `_expect_tx`, bytes that are to come as well."""
        number, site = self.index(expr.args[0]), self.site(expr)
        nbytes = self._constant_of(expr, 1) if expr.op.endswith("_tx") else 0

        def arrive(env: Env) -> int:
            team: Team = env[1].team
            barrier = self._barrier_of(env, site, number)
            team.settle()
            known = team.clock.released(env[2])
            for _ in range(env[0]):
                barrier.current.bytes += nbytes
                barrier.arrive(known)
                barrier.settle()
            return 0

        return arrive

    def _arrive_with_copies(self, expr: Call) -> Fn:
        """`T.ptx_cp_async_barrier(barrier)`: its phase ends when these threads' copies have, too."""
        number, site = self.index(expr.args[0]), self.site(expr)

        def attach(env: Env) -> int:
            team: Team = env[1].team
            barrier = self._barrier_of(env, site, number)
            barrier.current.copies += team.copies.arriving(env[2])
            return 0

        return attach

    def _wait_barrier(self, expr: Call) -> Fn:
        """`T.ptx_wait_barrier(barrier)`: until the first phase that the thread has not waited for
        is over."""
        number, site = self.index(expr.args[0]), self.site(expr)

        def wait(env: Env) -> int:
            team: Team = env[1].team
            barrier = self._barrier_of(env, site, number)
            over = barrier.over(env[2])
            if not over.all():
                lane, phase = int(np.argmin(over)), barrier.current
                raise site.error(
                    env, "BW765", f"{team.name(int(env[2][lane]))} waits for a phase of the barrier "
                    f"at which {phase.arrived} of {barrier.expected} threads have arrived", lane,
                    "let all threads that it counts arrive before any of them waits")  # fmt: skip
            team.settle()
            for number_ in np.unique(barrier.waited[env[2]]).tolist():
                phase = barrier.phases[number_]
                team.land(env, team.copies.end(phase.copies), phase)
                waiting = env[2][barrier.waited[env[2]] == number_]
                if phase.known is not None:
                    team.clock.acquire(waiting, phase.known)
            barrier.waited[env[2]] += 1
            return 0

        return wait

    def _constant_of(self, expr: Call, position: int) -> int:
        found = const_int(expr.args[position])
        if found is None:
            raise ValueError(f"argument {position + 1} is no constant")
        return found


# ------------------------------------------------------------------------------------- helpers
def _text(expr: Expr) -> str:
    if not isinstance(expr, StringImm):
        raise ValueError("a name in quotes is missing")
    return expr.value


def _lanes(env: Env) -> Lanes:
    team: Team = env[1].team
    return Lanes(team.warp[env[2]], team.lane[env[2]], team.existing)


def _checked(
    env: Env, site: Site, name: str, lanes: Lanes, mask: Any, act: Callable[[], Array]
) -> Array:
    try:
        lanes.check(mask)
        return act()
    except Absent as absent:
        lane, what = absent.args
        raise site.error(env, "BW764", f"{env[1].team.name(int(env[2][lane]))} runs {name}, but "
                         f"{what}", lane, "let all threads of the warp that the mask names run the "
                         "operation together") from None  # fmt: skip


def _warps(env: Env, site: Site, name: str) -> int:
    """How many warps are here; an error unless all of their threads are."""
    team: Team = env[1].team
    threads = env[2]
    whole = len(threads) % WARP == 0
    if whole:
        first = threads.reshape(-1, WARP)
        whole = bool(
            np.all(first == first[:, :1] + np.arange(WARP)) and np.all(team.lane[first[:, 0]] == 0)
        )
    if not whole:
        lanes = np.bincount(team.warp[threads], minlength=team.warps)
        partial = int(np.argmax((lanes > 0) & (lanes < WARP)))
        raise site.error(env, "BW764", f"{name} is run by {int(lanes[partial])} threads of a warp, "
                         f"and takes all {WARP}", int(np.argmax(team.warp[threads] == partial)),
                         "let the condition not depend on the lane; bind a multiple of 32 threads "
                         "to threadIdx.x")  # fmt: skip
    return len(threads) // WARP


def _one_lane(env: Env, site: Site, name: str) -> Env:
    """The first lanes of the warps here, which must be whole."""
    _warps(env, site, name)
    return compress(env, np.arange(env[0]) % WARP == 0)


def _elements(env: Env, place: Place, index: Fn, count: int) -> Array:
    """Positions of a fragment's elements: fragments follow one another in their buffer."""
    return (place.at(env) + np.asarray(index(env)) * count)[:, None] + np.arange(count)


def _matrix(env: Env, place: Place, stride: Fn, sizes: tuple[int, int], layout: str) -> Array:
    rows, columns = (x.reshape(-1) for x in np.indices(sizes))
    if layout == "col_major":
        rows, columns = columns, rows
    step = np.reshape(np.asarray(stride(env)), (-1, 1))
    return place.at(env)[:, None] + rows * step + columns


def _column(value: Any) -> Any:
    return value[:, None] if type(value) is np.ndarray else value
