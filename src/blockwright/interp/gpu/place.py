"""Operands of GPU operations: memory by address, constants; and checks for whole warps."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.access import AccessCompiler, note, unwritten
from blockwright.interp.gpu.thread_block import ThreadBlock
from blockwright.interp.gpu.warp import WARP
from blockwright.interp.lanes import Env, Fn, Site, compress, pick
from blockwright.interp.memory import TypedView
from blockwright.ir import BufferLoad, Call, Expr, StringImm, const_int
from blockwright.support import InterpretError

Array = np.ndarray[Any, Any]


class AddressedMemory:
    """Memory whose address is an operand of an operation."""

    def __init__(self, compiler: AccessCompiler, expr: Expr, offset: Expr | None = None) -> None:
        load = expr.args[0] if isinstance(expr, Call) and expr.op == "address_of" else None
        if not isinstance(load, BufferLoad) or load.buffer.dtype.lanes > 1:
            raise InterpretError(
                "the operation requires the address of a buffer element",
                code="BW757",
                span=expr.span or compiler.here,
                help="write A.data or T.address_of(A[i, j])",
            )
        self.buffer, self.dtype = load.buffer, load.buffer.dtype
        self.slot = compiler.slot(load.buffer)
        self.watched = compiler.watched(load.buffer)
        self._at = compiler.position(load.buffer, load.indices, None)
        self._offset: Fn = (lambda env: 0) if offset is None else compiler.index(offset)

    def at(self, env: Env) -> Array:
        """Position of the addressed element, per lane."""
        return np.broadcast_to(self._at(env) + self._offset(env), env[0])

    def read(self, env: Env, site: Site, where: Array, me: Array | None = None) -> Array:
        """Read elements at positions; `me`: thread of each element, if not that of its lane."""
        view = self._inside(env, site, where)
        if view.shadow is not None:
            seen = view.shadow[where]
            if seen.min(initial=view.ones) < view.ones:
                wide = where.shape[1] if where.ndim == 2 else 1
                raise unwritten(env, site, self.buffer.name, view, where, seen, wide)
        if env[1].levels:
            note(env, site, self.buffer.name, view, where, "read")
        if self.watched:
            env[1].team.touch(env, site, self.buffer.name, view, where, "read", me)
        return view.data[where]

    def write(self, env: Env, site: Site, where: Array, value: Any) -> None:
        """Write elements at positions."""
        view = self._inside(env, site, where)
        if env[1].levels:
            note(env, site, self.buffer.name, view, where, "write")
        if self.watched:
            env[1].team.touch(env, site, self.buffer.name, view, where, "write")
        if view.shadow is not None:
            view.shadow[where] = view.ones
        view.data[where] = value

    def view(self, env: Env, site: Site, where: Array) -> TypedView:
        """The view, after checking that all positions are inside it."""
        return self._inside(env, site, where)

    def _inside(self, env: Env, site: Site, where: Array) -> TypedView:
        view: TypedView = env[self.slot]
        base = env[self.slot + 1]
        if type(base) is np.ndarray and where.ndim == 2:
            base = base[:, None]
        bad = (where < base) | (where >= base + view.reach())
        if bad.any():
            first = int(np.argmax(bad.reshape(-1)))
            lane = first // (where.shape[1] if where.ndim == 2 else 1)
            start = int(pick(env[self.slot + 1], lane))
            raise site.error(
                env,
                "BW751",
                f"element {int(where.reshape(-1)[first]) - start} of "
                f"{self.buffer.name} is outside the buffer, which has {view.reach()}",
                lane,
            )
        return view


def text(expr: Expr) -> str:
    """The value of a string argument."""
    if not isinstance(expr, StringImm):
        raise ValueError("a string argument is missing")
    return expr.value


def constant_of(expr: Call, position: int) -> int:
    """The value of an argument that must be constant."""
    result = const_int(expr.args[position])
    if result is None:
        raise ValueError(f"argument {position + 1} is not constant")
    return result


def warps(env: Env, site: Site, name: str) -> int:
    """The number of active warps; an error unless all of their threads are active."""
    team: ThreadBlock = env[1].team
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
        raise site.error(
            env,
            "BW764",
            f"{name} is run by {int(lanes[partial])} threads of a warp, but requires all {WARP}",
            int(np.argmax(team.warp[threads] == partial)),
            "use a condition that does not depend on the lane; bind a multiple of 32 threads "
            "to threadIdx.x",
        )
    return len(threads) // WARP


def one_lane(env: Env, site: Site, name: str) -> Env:
    """The environment of the first lane of each active warp; warps must be whole."""
    warps(env, site, name)
    return compress(env, np.arange(env[0]) % WARP == 0)
