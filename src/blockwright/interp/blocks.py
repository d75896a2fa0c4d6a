"""Buffers and blocks: allocation, views, block iterators, predicates, initialization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blockwright.analysis import AlignRow, aligned_strides
from blockwright.interp.calls import CallGlobal, Run
from blockwright.interp.combine import combined_axes
from blockwright.interp.gpu.hardware import HardwareCompiler
from blockwright.interp.gpu.kernels import copies_of
from blockwright.interp.gpu.thread_block import ThreadBlock
from blockwright.interp.lane_sizes import agreed, by_size
from blockwright.interp.lanes import Env, Fn, RunState, compress, narrowed, same
from blockwright.interp.memory import MemoryBlock, Pointer, TypedView, compact_strides
from blockwright.ir import (
    Block,
    BlockRealize,
    Buffer,
    BufferStore,
    DeclBuffer,
    Expr,
    IterType,
    IterVar,
    MatchBufferRegion,
    Var,
    collect,
    is_const_int,
)
from blockwright.ir import stmt as S
from blockwright.ir.annotations import DIM_ALIGN
from blockwright.support import InterpretError


def _one_per_lane(env: Env) -> tuple[int, Any]:
    lanes: int | None = env[0]
    return (1, 0) if lanes is None else (lanes, np.arange(lanes))


class BlockCompiler(HardwareCompiler):
    """Adds storage and blocks.

    Attributes:
        on_chip: buffers that a kernel allocates, wherever the program declares them.
        axis_of: loop variable → the thread axis of the kernel that it stands for.
    """

    def __init__(self, call_global: CallGlobal) -> None:
        super().__init__(call_global)
        self.on_chip: set[Buffer] = set()
        self.axis_of: dict[Var, str] = {}

    # ---------------------------------------------------------------------------------- memory
    def new_buffer(self, buffer: Buffer) -> Run:
        """Allocate fresh storage on each execution.

        Each lane has its own copy; in a kernel, threads share copies as the storage scope defines.
        """
        align = self.alignment.get(buffer, ())
        shape, strides = self._layout(buffer)
        self.defined |= {v for v in (buffer.offset,) if isinstance(v, Var)}
        slot = self.slot(buffer)
        dtype, size = buffer.dtype, buffer.dtype.numpy().itemsize
        place_copies = self._copies(buffer)
        here = self.here

        def allocate(env: Env) -> None:
            sizes = tuple(agreed(env, fn(env), buffer) for fn in shape)
            if any(n < 0 for n in sizes):
                raise InterpretError(
                    f"buffer {buffer.name} has a negative extent: its shape is {sizes}",
                    code="BW766",
                    span=here,
                )
            steps = tuple(fn(env) for fn in strides) if strides else aligned_strides(sizes, align)
            reach = dtype.lanes
            reach *= (
                0 if 0 in sizes else 1 + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
            )
            copies, at = place_copies(env)
            storage = self._storage(env, buffer, copies * reach * size, size)
            env[slot] = TypedView(storage, dtype, 0, sizes, steps)
            env[slot + 1] = at * reach

        return allocate

    def _storage(self, env: Env, buffer: Buffer, nbytes: int, size: int) -> MemoryBlock:
        """Allocate bytes; shared memory is reused within a thread block."""
        try:
            fresh = MemoryBlock.fresh(nbytes, size, len(env[1].levels))
        except (MemoryError, ValueError):  # NumPy counts bytes in 63 bits
            raise InterpretError(
                f"out of memory: buffer {buffer.name} needs {nbytes} bytes",
                code="BW720",
                span=buffer.span,
                help="use smaller inputs",
            ) from None
        team: ThreadBlock | None = env[1].team
        if team is None or not buffer.scope.startswith("shared"):
            return fresh
        known = team.memory.setdefault(buffer, fresh)
        if len(known.raw) != nbytes:
            known = team.memory[buffer] = fresh
        if known is not fresh and known.written is not None:
            known.written[:] = 0
        known.banked = True
        return known

    def copies_again(self, buffer: Buffer) -> Run:
        """Rebind memory allocated by an earlier nest of the kernel for the threads of this nest."""
        slot, place_copies = self.slot(buffer), self._copies(buffer)

        def again(env: Env) -> None:
            env[slot + 1] = place_copies(env)[1] * env[slot].reach()

        return again

    def _copies(self, buffer: Buffer) -> Callable[[Env], tuple[int, Any]]:
        """A closure for the number of copies to allocate and the copy that each lane uses."""
        if self.launch is None or copies_of(buffer) == "thread":
            return _one_per_lane
        if copies_of(buffer) == "warp":
            return lambda env: (env[1].team.warps, env[1].team.warp[env[2]])
        if copies_of(buffer) == "block":
            site = self.site(buffer)

            def one(env: Env) -> tuple[int, Any]:
                if not env[1].team.complete(env):
                    raise site.error(
                        env,
                        "BW757",
                        f"{buffer.name} is allocated for all threads "
                        "of a block, but not all of them execute the allocation",
                        help="allocate it outside of the condition",
                    )
                return 1, 0

            return one
        if len(self.opened) == len(self.launch.extents):
            return _one_per_lane
        slots = {key: self.coordinates[key] for key in self.opened}

        def one_per_member(env: Env) -> tuple[int, Any]:
            extents = env[1].team.extents
            count, at = 1, 0 * env[2]
            for key, slot in slots.items():
                at, count = at + env[slot] * count, count * extents[key]
            return count, at

        return one_per_member

    def _layout(self, buffer: Buffer) -> tuple[list[Fn], list[Fn]]:
        return [self.index(n) for n in buffer.shape], [self.index(s) for s in buffer.strides]

    def _allocate(self, node: S.Allocate) -> Run:
        rows: tuple[AlignRow, ...] = tuple(node.annotations.get(DIM_ALIGN, ()))
        if rows:
            self.alignment = {**self.alignment, node.buffer: rows}
        if node.buffer in self._owned():
            return self.stmt(node.body)
        allocate, body = self.new_buffer(node.buffer), self.stmt(node.body)

        def run(env: Env) -> None:
            allocate(env)
            body(env)

        return run

    def _declare(self, node: DeclBuffer) -> Run:
        source = self.pointer(node.source)
        bind, body = self.bind_view(node.buffer), self.stmt(node.body)

        def run(env: Env) -> None:
            bind(env, source(env))
            body(env)

        return run

    def bind_view(self, buffer: Buffer, param: bool = False) -> Callable[[Env, Pointer], None]:
        """A closure that binds `buffer` to the memory at a pointer: that of a parameter's first
        element, or of what its offset counts from."""
        shape, strides = self._layout(buffer)
        offset = self._offset_of(buffer, param)
        slot, site = self.slot(buffer), self.site(buffer)
        element = buffer.dtype.numpy().itemsize
        unit = element * buffer.dtype.lanes

        def bind(env: Env, pointer: Pointer) -> None:
            sizes = tuple(fn(env) for fn in shape)
            steps = tuple(fn(env) for fn in strides) if strides else compact_strides(sizes)
            storage, start = pointer.storage, pointer.byte + offset(env) * unit
            base, phases = divmod(start, element)
            phase = int(np.min(phases))
            if np.any(phases != phase):
                raise site.error(
                    env,
                    "BW758",
                    f"buffer {buffer.name} starts at different offsets within "
                    "an element for different threads",
                )
            view = TypedView(storage, buffer.dtype, phase, sizes, steps)
            env[slot], env[slot + 1] = view, base
            begins = np.min(base) + view.first() >= 0
            if not begins or (np.max(base) + view.reach()) * element + phase > len(storage.raw):
                what = "ends" if begins else "begins"
                text = f"buffer {buffer.name} of shape {sizes} {what} outside of its memory"
                raise site.error(env, "BW751", text)
            if buffer.data_alignment > element and storage.owned:
                starts = np.atleast_1d(start)
                odd = starts[starts % buffer.data_alignment != 0]
                if len(odd):
                    text = f"buffer {buffer.name} starts at byte {odd[0]} of its storage"
                    raise site.error(
                        env, "BW758", f"{text}, not at a multiple of {buffer.data_alignment}"
                    )

        return bind

    def _offset_of(self, buffer: Buffer, param: bool) -> Fn:
        """Elements between a pointer and element 0; an unbound variable is 0, and binds to it."""
        offset = buffer.offset
        if offset is None:
            return lambda env: 0
        if isinstance(offset, Var) and offset not in self.defined:
            slot = self.define(offset)

            def zero(env: Env) -> int:
                env[slot] = 0
                return 0

            return zero
        return (lambda env: 0) if param else self.index(offset)

    # ---------------------------------------------------------------------------------- blocks
    def _realize(self, node: BlockRealize) -> Run:
        block = node.block
        predicate = None if is_const_int(node.predicate, 1) else self.condition(node.predicate)
        values = [self.kept(v, self.index(v)) for v in node.iter_values]
        outer, self.block = self.block, block.name
        launch = self.launch
        leaf = launch is not None and block in launch.leaves
        shown = len(self.visible)
        iters = [self._iterator(it) for it in block.iter_vars]
        axes = combined_axes(node, self.axis_of) if leaf else []
        body = self._combining(block, axes) if axes else self._block_body(block)
        if launch is not None and leaf:
            body = self.by_one(body, launch.written[block])
        del self.visible[shown:]
        self.block = outer

        def realize(env: Env) -> None:
            if predicate is not None:
                holds = predicate(env)
                if type(holds) is np.ndarray:
                    if not holds.any():
                        return
                    if not holds.all():
                        env = narrowed(env, holds, block)
                elif not holds:
                    return
            if leaf:
                env[1].team.ran.add(block)
            bound = [value(env) for value in values]
            for bind, value in zip(iters, bound, strict=True):
                bind(env, value)
            body(env)

        return realize

    def _iterator(self, it: IterVar) -> Callable[[Env, Any], None]:
        low, extent, site = self.index(it.dom.min), self.index(it.dom.extent), self.site(it)
        slot, name = self.define(it.var), it.var.name
        self.visible.append((name, slot))

        def bind(env: Env, value: Any) -> None:
            start, count = low(env), extent(env)
            memo = env[1].memo
            if type(value) is np.ndarray:
                now = (value, start, count)
                if all(map(same, memo.get(it, (None, None, None)), now)):
                    env[slot] = value
                    return
                memo[it] = now
            inside = (value >= start) & (value < start + count)
            if not (inside.all() if type(inside) is np.ndarray else inside):
                lane = int(np.argmin(inside))
                raise site.error(
                    env,
                    "BW755",
                    f"block iterator {name} has a value outside its "
                    f"domain [{start}, {start + count})",
                    lane,
                    "guard the block with a predicate (T.where)",
                )
            env[slot] = value

        return bind

    def _combining(self, block: Block, axes: list[str]) -> Run:
        """The body of a block whose terms are combined across threads.

        Initialization runs first, then the terms of the threads that differ along the axes, in any
        order.
        """
        self.combined = frozenset(s.buffer for s in collect(block.body, BufferStore))
        begin, term = self._begin(block), self.stmt(block.body)
        self.combined = frozenset()
        slots = {axis: self.coordinates[axis] for axis in axes}

        def combine(env: Env) -> None:
            state: RunState = env[1]
            assert state.team is not None
            for step in begin:
                step(env)
            turn: Any = 0
            for axis, slot in slots.items():
                turn = turn * state.team.extents[axis] + env[slot]
            turns = np.unique(turn)
            for k in state.sequence(len(turns), unordered=True):
                term(compress(env, turn == turns[k]))

        return combine

    def _block_body(self, block: Block) -> Run:
        bound = self._bound_by_views(block)
        begin, (*waits, run) = self._begin(block), self.after_barrier(block.body)
        sizes = [self.index(n) for b in block.alloc_buffers for n in b.shape if not is_const_int(n)]
        self.defined -= bound  # each copy of a block binds the variables of its views itself
        if self.launch is not None and sizes and not collect(block.body, Block):
            return by_size(sizes, waits, [*begin, run])
        steps = [*begin, *waits, run]
        if len(steps) == 1:
            return steps[0]

        def body(env: Env) -> None:
            for step in steps:
                step(env)

        return body

    def _begin(self, block: Block) -> list[Run]:
        """The steps of a block before its body: allocations, views, init."""
        owned = self._owned()
        steps: list[Run] = [self.new_buffer(b) for b in block.alloc_buffers if b not in owned]
        steps += [self._match(m) for m in block.match_buffers]
        if block.init is not None:
            steps.append(self._init(block))
        return steps

    def _owned(self) -> set[Buffer]:
        """Buffers that are allocated by inner loops instead of where they are declared."""
        return {b for owned in self.privates.values() for b in owned} | self.on_chip

    def _init(self, block: Block) -> Run:
        """Run `init` where every reduction iterator has its initial value."""
        assert block.init is not None
        init = self.stmt(block.init)
        starts = [
            (self.slot(it.var), self.index(it.dom.min))
            for it in block.iter_vars
            if it.iter_type is IterType.REDUCE
        ]

        def run(env: Env) -> None:
            first: Any = True
            for slot, low in starts:
                first = first & (env[slot] == low(env))
            if type(first) is not np.ndarray:
                if first:
                    init(env)
            elif first.any():
                init(env if first.all() else compress(env, first))

        return run

    def _match(self, match: MatchBufferRegion) -> Run:
        """Bind a view of a region, with its symbolic shape, strides and offset."""
        view, source, site = match.buffer, match.source, self.site(match)
        origin = self._known(source.buffer)
        lows = [self.index(r.min) for r in source.region]
        counts = [self.index(r.extent) for r in source.region]
        extra = len(lows) - view.ndim
        if extra < 0:
            raise InterpretError(
                f"view {view.name} has more dimensions than its region of {source.buffer.name}",
                code="BW757",
                span=match.span,
            )
        bind_shape = [self._bind_or_check(n) for n in view.shape]
        bind_strides = [self._bind_or_check(s) for s in view.strides]
        bind_offset = None if view.offset is None else self._bind_or_check(view.offset)
        slot, name, factor = self.slot(view), view.name, view.offset_factor

        def run(env: Env) -> None:
            outer: TypedView = env[origin]
            start: Any = 0
            sizes: list[int] = []
            for low, count, extent, stride in zip(
                lows, counts, outer.shape, outer.strides, strict=True
            ):
                first, n = low(env), int(np.max(count(env)))
                if n > 0 and (np.min(first) < 0 or np.max(first) + n > extent):
                    raise site.error(
                        env,
                        "BW751",
                        f"the region of view {name} leaves "
                        f"{source.buffer.name} of shape {outer.shape}",
                    )
                start = start + first * stride
                sizes.append(n)
            steps = outer.strides[extra:]
            fits = all(n == 1 for n in sizes[:extra])
            fits = fits and all(b(env, n) for b, n in zip(bind_shape, sizes[extra:], strict=True))
            fits = fits and all(b(env, s) for b, s in zip(bind_strides, steps, strict=False))
            if not fits or not (bind_offset is None or bind_offset(env, start)):
                facts = f"{source.buffer.name}: sizes {sizes}, strides {steps}"
                raise site.error(env, "BW758", f"view {name} does not fit its region of {facts}")
            if factor > 1 and np.any(np.mod(start, factor)):
                text = f"view {name} starts at element {start} of {source.buffer.name}"
                raise site.error(env, "BW758", f"{text}, not at a multiple of {factor}")
            env[slot] = TypedView(
                outer.storage, view.dtype, outer.phase, tuple(sizes[extra:]), steps
            )
            env[slot + 1] = env[origin + 1] + start * outer.lanes

        return run

    def _bound_by_views(self, block: Block) -> set[Var]:
        """The variables that the region views of a block bind."""
        views = [match.buffer for match in block.match_buffers]
        formals = [f for v in views for f in (*v.shape, *v.strides, v.offset)]
        return {f for f in formals if isinstance(f, Var) and f not in self.defined}

    def _bind_or_check(self, formal: Expr) -> Callable[[Env, Any], bool]:
        """A closure that binds a free variable, or checks that an expression has the value."""
        if isinstance(formal, Var) and formal not in self.defined:
            slot = self.define(formal)

            def bind(env: Env, actual: Any) -> bool:
                env[slot] = actual
                return True

            return bind
        value = self.index(formal)
        return lambda env, actual: bool(np.all(value(env) == actual))
