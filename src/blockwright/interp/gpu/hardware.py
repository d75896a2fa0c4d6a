"""GPU operations: the compile method of each, block and warp barriers, shuffles and votes.

The semantics of lanes are in `warp` and `fragments`. Memory accesses of operations are checked like
loads and stores, each element on behalf of a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from blockwright.interp.gpu.copying import CopyCompiler
from blockwright.interp.gpu.matrices import MatrixCompiler
from blockwright.interp.gpu.place import constant_of, text
from blockwright.interp.gpu.thread_block import ThreadBlock
from blockwright.interp.gpu.warp import Absent, WarpLanes
from blockwright.interp.lanes import Env, Fn, Site
from blockwright.ir import Call
from blockwright.support import InterpretError

Array = np.ndarray[Any, Any]


class HardwareCompiler(MatrixCompiler, CopyCompiler):
    """Adds GPU operations to expressions."""

    operations: ClassVar[dict[str, str]] = {
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
        method = self.operations.get(expr.op)
        if method is None:
            return super()._effect(expr)
        if self.launch is None:
            if expr.op == "tvm_storage_sync":
                return lambda env: 0
            raise InterpretError(
                f"{expr.op} is used outside of a kernel",
                code="BW757",
                span=expr.span or self.here,
                help="bind loops around it to thread axes",
            )
        compile_: Callable[[Call], Fn] = getattr(self, method)
        try:
            return compile_(expr)
        except (IndexError, ValueError) as error:
            raise InterpretError(
                f"{expr.op} has invalid arguments: {error}",
                code="BW757",
                span=expr.span or self.here,
            ) from None

    # -------------------------------------------------------------------------------- barriers
    def _barrier(self, expr: Call) -> Fn:
        """`T.tvm_storage_sync(scope)`: barrier for the threads of a block or warp."""
        scope, site = text(expr.args[0]), self.site(expr)
        if scope == "warp":
            return lambda env: env[1].team.warp_barrier(env, site)
        if not scope.startswith("shared"):
            raise InterpretError(
                f"a barrier for {scope!r}: blocks of a kernel run one after "
                "another and do not synchronize",
                code="BW757",
                span=site.span,
                help='write T.tvm_storage_sync("shared"), or begin a new kernel',
            )
        return lambda env: env[1].team.barrier(env, site)

    # ----------------------------------------------------------------------------------- warps
    def _active(self, expr: Call) -> Fn:
        return lambda env: _lanes(env).active().astype(np.uint32)

    def _invariant(self, expr: Call) -> Fn:
        return self.value(expr.args[0])

    def _shuffled(self, expr: Call) -> Fn:
        """`T.tvm_warp_shuffle…(mask, value, lane or distance, width, warp size)`."""
        mask, value = self.value(expr.args[0]), self.value(expr.args[1])
        by, width, site = self.index(expr.args[2]), constant_of(expr, 3), self.site(expr)
        how = {"": "index", "_up": "up", "_down": "down", "_xor": "across"}[
            expr.op.removeprefix("tvm_warp_shuffle")
        ]
        if width not in (1, 2, 4, 8, 16, 32):
            raise ValueError(f"the width {width} is not a power of two up to 32")
        name = expr.op

        def shuffle(env: Env) -> Any:
            lanes = _lanes(env)
            own = np.asarray(value(env))
            own = np.broadcast_to(own, (env[0], *own.shape[1:]))
            return _checked(
                env, site, name, lanes, mask(env), lambda: lanes.shuffle(how, own, by(env), width)
            )

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


def _lanes(env: Env) -> WarpLanes:
    team: ThreadBlock = env[1].team
    return WarpLanes(team.warp[env[2]], team.lane[env[2]], team.existing)


def _checked(
    env: Env, site: Site, name: str, lanes: WarpLanes, mask: Any, act: Callable[[], Array]
) -> Array:
    try:
        lanes.check(mask)
        return act()
    except Absent as absent:
        lane, what = absent.args
        raise site.error(
            env,
            "BW764",
            f"{env[1].team.name(int(env[2][lane]))} runs {name}, but {what}",
            lane,
            "make all threads of the warp named by the mask run the operation together",
        ) from None
