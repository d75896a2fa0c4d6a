"""Decide which loops of a nest may run as lanes, from the addresses the nest actually accesses.

A chain of perfectly nested loops is split into lane loops, whose iterations run at once, and step
loops, which run in order. This only reorders instances in different lanes, so it is exact if no two
lanes access the same element of any buffer the nest writes. The static part collects the accesses
to written buffers as functions of loop variables and rejects unsupported constructs. The dynamic
part enumerates the addresses of these accesses and checks that each belongs to a single lane. It
does not reason about index expressions symbolically.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from blockwright.interp.access import AccessCompiler
from blockwright.interp.combine import combines_lanes, kind_of
from blockwright.interp.footprint import Collector, Opaque, Resolve
from blockwright.interp.lanes import (
    MAX_LANES,
    CompiledLoop,
    Env,
    Fn,
    RunState,
    TooManyLanes,
    expand,
    refreshed,
    run_loops,
    same,
)
from blockwright.interp.memory import TypedView
from blockwright.interp.privatization import Privates
from blockwright.ir import Buffer, BufferLoad, Expr, For, ForKind, Stmt, Var, uses_var, walk
from blockwright.support import InterpretError

_LIMIT = 1 << 22  # addresses enumerated for one check
_SCRATCH = 1 << 28  # total bytes of the lanes' private buffers
_TRIES = 3  # failed checks after which a nest is not tried again in the same run


class _Check(NamedTuple):
    """One access to a written buffer, ready for enumeration."""

    slot: int
    at: Fn
    loops: list[CompiledLoop]  # loops inside the body that the address depends on
    steps: list[int]  # chain positions that the address depends on
    writes: bool


class LaneNest:
    """A compiled chain of loops with the data for its lane check."""

    def __init__(
        self,
        chain: list[CompiledLoop],
        body: Fn,
        checks: list[_Check],
        read_only: list[int],
        wanted: list[int],
        depends: list[set[int]],
        owner: int,
        scratch: list[Fn],
        inputs: list[int] | None,
    ) -> None:
        self.chain = chain
        self.body = body
        self.checks = checks
        self.read_only = read_only
        self.wanted = wanted
        self.depends = depends
        self.owner = owner
        self.scratch = scratch
        self.inputs = inputs  # slots that determine the lanes; None if memory contents do too

    def run(self, env: Env) -> bool:
        """Run as lanes if that is exact; False if the caller must run the loops in order."""
        state: RunState = env[1]
        if not self.wanted or state.failures.get(self, 0) >= _TRIES:
            return False
        if self._again(env):
            return True
        tried = False
        for lanes in self._candidates():
            verdict = self._try(env, lanes)
            if verdict:
                return True
            tried = tried or verdict is False
        if tried:
            state.failures[self] = state.failures.get(self, 0) + 1
        return False

    def _again(self, env: Env) -> bool:
        """Reuse the previous lanes if nothing that determines them has changed."""
        result = env[1].memo.get(self)
        if result is None or self.inputs is None:
            return False
        lanes: list[int] = result[0]
        rows, before, after = result[1:]
        if not all(same(env[slot], before[slot]) for slot in (0, *self.inputs)):
            return False
        if rows is None and any(
            type(v) is np.ndarray and v is not old for v, old in zip(env, before, strict=True)
        ):
            return False
        inner = refreshed(env, rows, before, after)
        for slot in (0, self.owner, *(self.chain[k].slot for k in lanes)):
            inner[slot] = after[slot]  # an in-order run may have left other values here
        env[1].memo[self] = (lanes, rows, list(env), list(inner))
        self._steps(inner, lanes)
        return True

    def _steps(self, inner: Env, lanes: list[int]) -> None:
        steps = [loop for k, loop in enumerate(self.chain) if k not in lanes]
        run_loops(inner, steps, self.body)

    def _candidates(self) -> list[list[int]]:
        whole = self._closed(set(self.wanted))
        fewer = [self._closed(set(whole) - {k}) for k in whole] if len(whole) > 1 else []
        return [c for c in (whole, *fewer) if c]

    def _closed(self, lanes: set[int]) -> list[int]:
        """Drop the loops whose bounds depend on a step loop."""
        chosen: list[int] = []
        for k in range(len(self.chain)):
            if k in lanes and self.depends[k] <= set(chosen):
                chosen.append(k)
        return chosen

    def _try(self, env: Env, lanes: list[int]) -> bool | None:
        """True if the nest ran, False if lanes are not independent, None if not worthwhile."""
        try:
            scratch = sum(fn(env) for fn in self.scratch)
        except InterpretError:
            return None  # a size that may only be evaluated inside an iteration
        limit = min(MAX_LANES, _SCRATCH // max(scratch, 1))
        while lanes:
            try:
                outer = list(env)
                outer[self.owner] = None if env[0] is None else np.arange(env[0])
                inner = expand(outer, [self.chain[k] for k in lanes], limit)
            except TooManyLanes:
                lanes = self._closed(set(lanes[1:]))
                continue
            except InterpretError:
                return None  # a bound that may only be evaluated inside an iteration
            if inner[0] == 0:
                return True
            if inner[0] < 2 * (env[0] or 1):
                return None
            rows, inner[self.owner] = inner[self.owner], np.arange(inner[0])
            try:
                if not self._independent(inner, lanes):
                    return False
            except TooManyLanes:
                lanes = self._closed(set(lanes[1:]))
                continue
            except InterpretError:
                return False  # an index that may only be evaluated by a guarded instance
            env[1].memo[self] = (lanes, rows, list(env), list(inner))
            self._steps(inner, lanes)
            return True
        return None

    def _independent(self, env: Env, lanes: list[int]) -> bool:
        groups: dict[int, list[tuple[Any, Any, TypedView]]] = {}
        for check in self.checks:
            steps = [self.chain[k] for k in check.steps if k not in lanes]
            box = expand(env, [*steps, *check.loops], _LIMIT)
            if box[0] == 0:
                continue
            (where, inside), owner = check.at(box), box[self.owner]
            if type(where) is not np.ndarray:
                return False  # every lane accesses this one element
            owner = np.broadcast_to(owner[:, None] if where.ndim == 2 else owner, where.shape)
            if inside is not True and not np.all(inside):
                # An access outside of the buffer is an error in any order.
                inside = np.broadcast_to(inside, where.shape)
                where, owner = where[inside], owner[inside]
            if where.size:
                view: TypedView = env[check.slot]
                entry = (where.reshape(-1), owner.reshape(-1), view)
                groups.setdefault(id(view.storage), []).append(entry)
        return all(_one_owner(group) for group in groups.values()) and self._apart(env)

    def _apart(self, env: Env) -> bool:
        """Whether no read-only buffer shares memory with a written one."""
        spans = [(env[c.slot], *_extent(env, c.slot)) for c in self.checks if c.writes]
        for slot in self.read_only:
            view: TypedView = env[slot]
            low, high = _extent(env, slot)
            for other, start, end in spans:
                if view.storage is other.storage and low < end and start < high:
                    return False
        return True


def _extent(env: Env, slot: int) -> tuple[int, int]:
    """The byte range of the storage that a view covers, over all lanes."""
    view: TypedView = env[slot]
    base = np.asarray(env[slot + 1])
    low, high = int(base.min()) + view.first(), int(base.max()) + view.reach()
    return low * view.size + view.phase, high * view.size + view.phase


def _one_owner(group: list[tuple[Any, Any, TypedView]]) -> bool:
    if len({(view.size, view.phase) for _, _, view in group}) > 1:
        return False
    low = min(int(where.min()) for where, _, _ in group)
    high = max(int(where.max()) for where, _, _ in group)
    if high - low >= 4 * _LIMIT:
        return False
    owners = np.full(high - low + 1, -1, np.int64)
    for where, owner, _ in group:
        owners[where - low] = owner
    return all(bool((owners[where - low] == owner).all()) for where, owner, _ in group)


def chain_of(node: For, privates: Privates) -> tuple[list[For], Stmt]:
    """The perfectly nested loops from `node` on, and the innermost body.

    A chain ends with a loop whose iterations own private buffers.
    """
    loops: list[For] = []
    body: Stmt = node
    while isinstance(body, For) and body.kind is not ForKind.THREAD_BINDING:
        loops.append(body)
        body = body.body
        if loops[-1] in privates:
            break
    return loops, body


def plan_nest(
    compiler: AccessCompiler,
    loops: list[For],
    body: Stmt,
    chain: list[CompiledLoop],
    run_body: Fn,
    privates: Privates,
    known: frozenset[Var],
) -> LaneNest | None:
    """The nest with its checks; None if the static part does not support it.

    Args:
        known: the variables that have values before the nest begins.
    """
    collector = Collector(privates, known)
    try:
        collector.allocate(*privates.get(loops[-1], ()))
        for loop in loops:
            collector.expr(loop.min)
            collector.expr(loop.extent)
        collector.stmt(body)
        return _plan(compiler, loops, chain, run_body, collector)
    except Opaque:
        return None


def _plan(
    compiler: AccessCompiler,
    loops: list[For],
    chain: list[CompiledLoop],
    run_body: Fn,
    seen: Collector,
) -> LaneNest:
    resolve = Resolve(seen.bindings, seen.views)
    chain_vars = [loop.loop_var for loop in loops]
    local = {*chain_vars, *seen.inner}
    if any(uses_var(resolve(size), local) for size in seen.sizes):
        raise Opaque
    places = [(access, *resolve.place(access.buffer, access.indices)) for access in seen.found]
    written = {buffer for access, buffer, _ in places if access.writes}
    depends = [
        {
            k
            for k, var in enumerate(chain_vars)
            if uses_var(loop.min, var) or uses_var(loop.extent, var)
        }
        for loop in loops
    ]
    checks: list[_Check] = []
    deciding: list[Expr] = [bound for loop in loops for bound in (loop.min, loop.extent)]
    wanted = set(range(len(loops)))
    hidden = written | seen.private
    for access, buffer, indices in places:
        if buffer not in written or buffer in seen.private:
            continue
        used = _used(indices, local, hidden)
        deciding += [
            *indices,
            *(resolve(n) for loop in access.loops for n in (loop.min, loop.extent)),
        ]
        inner = _inner_loops(compiler, access.loops, used, local, hidden, resolve)
        steps = {k for k, var in enumerate(chain_vars) if var in used}
        wanted &= steps
        for k in reversed(range(len(loops))):
            steps |= depends[k] if k in steps else set()
        at = compiler.cells(buffer, indices)
        checks.append(_Check(compiler.slots[buffer], at, inner, sorted(steps), access.writes))
    touched = {buffer for _, buffer, _ in places} - written - seen.private
    owner = compiler.count
    compiler.count += 1
    scratch = [_bytes_of(compiler, b, resolve) for b in seen.private]
    read_only = [compiler.slots[b] for b in touched]
    inputs = _inputs(compiler, deciding, local, [*(c.slot for c in checks), *read_only])
    return LaneNest(
        chain, run_body, checks, read_only, sorted(wanted), depends, owner, scratch, inputs
    )


def _inputs(
    compiler: AccessCompiler, exprs: list[Expr], local: set[Var], buffers: list[int]
) -> list[int] | None:
    """Slots that addresses and bounds depend on; None if they depend on loaded values."""
    result = {slot + k for slot in buffers for k in (0, 1)}
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, BufferLoad):
                return None
            if isinstance(node, Var) and node not in local:
                result.add(compiler.slot(node))
    return sorted(result)


def _bytes_of(compiler: AccessCompiler, buffer: Buffer, resolve: Resolve) -> Fn:
    """The size of one lane's copy of a buffer in bytes."""
    shape = [compiler.index(resolve(extent)) for extent in buffer.shape]
    size = buffer.dtype.numpy().itemsize * buffer.dtype.lanes
    return lambda env: math.prod((fn(env) for fn in shape), start=size)


def _used(exprs: tuple[Expr, ...], local: set[Var], hidden: set[Buffer]) -> set[Var]:
    """Loop variables of resolved expressions, which must not read buffers the nest writes."""
    used: set[Var] = set()
    for expr in exprs:
        for node in walk(expr):
            if isinstance(node, Var) and node in local:
                used.add(node)
            elif isinstance(node, BufferLoad) and node.buffer in hidden:
                raise Opaque
    return used


def _inner_loops(
    compiler: AccessCompiler,
    path: tuple[For, ...],
    used: set[Var],
    local: set[Var],
    hidden: set[Buffer],
    resolve: Resolve,
) -> list[CompiledLoop]:
    """The loops of a path that an address depends on, directly or through bounds; extends `used`.

    Their headers are compiled separately, in terms of loop variables only.
    """
    needed: list[CompiledLoop] = []
    for loop in reversed(path):
        if loop.loop_var in used:
            low, extent = resolve(loop.min), resolve(loop.extent)
            used |= _used((low, extent), local, hidden)
            name, slot = loop.loop_var.name, compiler.slot(loop.loop_var)
            bounds = compiler.index(low), compiler.index(extent)
            needed.append(
                CompiledLoop(name, slot, *bounds, kind_of(loop), False, free=combines_lanes(loop))
            )
    return needed[::-1]
