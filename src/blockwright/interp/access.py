"""Element loads and stores with bounds, initialization and race checks; addresses of elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from blockwright.analysis.kernels import shares
from blockwright.analysis.validate.lane_counts import lane_problem
from blockwright.interp.expr import ExprCompiler
from blockwright.interp.gpu.kernels import Launch, axis_tag, copies_of
from blockwright.interp.lanes import DID, Env, Fn, Site, compress, pick, same, with_first
from blockwright.interp.memory import Pointer, Touch, TypedView, coordinates, record
from blockwright.ir import (
    Buffer,
    BufferLoad,
    BufferStore,
    Call,
    Expr,
)
from blockwright.support import InterpretError


class AccessCompiler(ExprCompiler):
    """Adds memory accesses to expressions.

    Attributes:
        launch: the kernel nest that is being compiled.
        opened: thread axes of the kernel whose loops enclose the current statement.
        coordinates: thread axis → slot that holds each lane's position along it.
        combined: buffers whose elements several threads update by combining their terms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launch: Launch | None = None
        self.opened: tuple[str, ...] = ()
        self.coordinates: dict[str, int] = {}
        self.combined: frozenset[Buffer] = frozenset()

    def watched(self, buffer: Buffer) -> bool:
        """Whether accesses by several threads of a block must be tracked for a buffer."""
        if self.launch is None:
            return False
        return buffer in self.launch.tracked or buffer.scope.startswith("shared")

    def sharers(self, scope: str) -> list[int]:
        """Coordinates along which several threads run the same statement on the same memory.

        Outside the loops of an axis, all threads along it run each statement; a statement that
        writes shared memory is left to the first of them.
        """
        if self.launch is None:
            return []
        return [
            self.coordinates[key]
            for key in self.launch.extents
            if key not in self.opened and shares(scope, axis_tag(key))
        ]

    def by_one(self, run: Fn, scopes: Iterable[str]) -> Fn:
        """Restrict `run` to the first of the threads that would write the same shared memory.

        Args:
            scopes: storage scopes of the buffers it writes.
        """
        shared = [self.sharers(scope) for scope in scopes]
        slots = [slot for slot in shared[0] if all(slot in s for s in shared)] if shared else []
        if not slots:
            return run

        def one(env: Env) -> None:
            first: Any = True
            for slot in slots:
                first = first & (env[slot] == 0)
            if np.all(first):
                run(env)
            elif np.any(first):
                run(compress(env, first))

        return one

    def position(self, buffer: Buffer, indices: tuple[Expr, ...], site: Site | None) -> Fn:
        """The positions of elements in the view's data; bounds are not checked without a site."""
        slot = self._known(buffer)
        fns, vector = self._indices(buffer, indices)
        name, key = buffer.name, object()

        def at(env: Env) -> Any:
            view: TypedView = env[slot]
            base, result = env[slot + 1], None
            index = [fn(env) for fn in fns]
            keeps = env[0] is not None and site is not None
            if keeps:
                result = env[1].memo.get(key)
                if result is not None and result[0] is view:
                    if same(result[1], base) and all(map(same, result[2], index)):
                        return result[4]
                else:
                    result = None
            steps: list[Any] = []
            for axis, i in enumerate(index):
                if result is not None and result[2][axis] is i:
                    steps.append(result[3][axis])
                    continue
                if site is not None and not _inside(i, view.shape[axis]):
                    raise _outside(env, site, name, view, index, vector)
                steps.append(i * view.strides[axis])
            flat = steps[0] if steps else 0
            for step in steps[1:]:
                flat = flat + step
            place = _place(base, flat, view, vector)
            if keeps:
                env[1].memo[key] = (view, base, index, steps, place)
            return place

        return at

    def cells(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Fn:
        """Positions as in `position`, and a mask of those inside the buffer (True: all)."""
        slot = self._known(buffer)
        fns, vector = self._indices(buffer, indices)

        def at(env: Env) -> tuple[Any, Any]:
            view: TypedView = env[slot]
            flat: Any = 0
            inside: Any = True
            for axis, fn in enumerate(fns):
                index = fn(env)
                inside = inside & (index >= 0) & (index < view.shape[axis])
                flat = flat + index * view.strides[axis]
            if view.lanes > 1 and type(inside) is np.ndarray:
                inside = np.repeat(inside, view.lanes, axis=-1) if vector else inside[..., None]
            return _place(env[slot + 1], flat, view, vector), inside

        return at

    def _known(self, buffer: Buffer) -> int:
        if buffer not in self.slots:
            raise InterpretError(
                f"buffer {buffer.name} is used but not declared",
                code="BW757",
                span=buffer.span,
                help="make it a parameter, or allocate it in an enclosing block",
            )
        return self.slots[buffer]

    def _indices(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[list[Fn], bool]:
        if len(indices) != buffer.ndim:
            raise InterpretError(
                f"buffer {buffer.name} has {buffer.ndim} dimensions, the access "
                f"has {len(indices)} indices",
                code="BW757",
            )
        vector = any(i.dtype.lanes > 1 for i in indices)
        fns: list[Fn] = []
        for i in indices:
            fn = self.index(i)
            fns.append(self.kept(i, _lifted(fn) if vector and i.dtype.lanes == 1 else fn))
        return fns, vector

    # ----------------------------------------------------------------------------------- reads
    def _load(self, expr: BufferLoad) -> Fn:
        buffer = expr.buffer
        slot, site = self._known(buffer), self.site(expr)
        problem = lane_problem(expr)
        if problem is not None:
            raise InterpretError(problem, code="BW757", span=expr.span)
        if expr.predicate is not None:
            return self._masked_load(expr, slot, site)
        at = self.position(buffer, expr.indices, site)
        name, lanes = buffer.name, expr.dtype.lanes
        watched = self.watched(buffer)
        how: Touch = "atomic" if buffer in self.combined else "read"

        def load(env: Env) -> Any:
            view: TypedView = env[slot]
            where = at(env)
            shadow = view.shadow
            if shadow is not None:
                seen = shadow[where]
                if (seen.min(initial=view.ones) if type(seen) is np.ndarray else seen) < view.ones:
                    raise unwritten(env, site, name, view, where, seen, lanes)
            if env[1].levels:
                note(env, site, name, view, where, "read")
            if watched:
                env[1].team.touch(env, site, name, view, where, how, wide=lanes > 1)
            return view.data[where]

        return load

    def _masked_load(self, expr: BufferLoad, slot: int, site: Site) -> Fn:
        assert expr.predicate is not None
        mask_of, places = self.condition(expr.predicate), self._masked_places(expr, site)
        name, lanes, kind = expr.buffer.name, expr.dtype.lanes, expr.dtype.numpy()
        watched = self.watched(expr.buffer)

        def load(env: Env) -> Any:
            view: TypedView = env[slot]
            mask, where = places(env, mask_of(env))
            if view.shadow is not None:
                seen = view.shadow[where]
                if seen.min(initial=view.ones) < view.ones:
                    raise unwritten(env, site, name, view, where, seen, lanes)
            if env[1].levels:
                note(env, site, name, view, where, "read")
            if watched:
                env[1].team.touch(env, site, name, view, where, "read", _of_mask(env, mask))
            result = np.zeros(mask.shape, kind)
            result[mask] = view.data[where]
            return result

        return load

    def _masked_places(self, node: BufferLoad | BufferStore, site: Site) -> Any:
        """(env, mask) → the mask over all elements, and the positions of the active ones."""
        buffer = node.buffer
        if buffer.dtype.lanes > 1:
            raise InterpretError("a predicate on a buffer of vectors", code="BW757", span=node.span)
        slot = self._known(buffer)
        fns, _ = self._indices(buffer, node.indices)
        name = buffer.name

        def places(env: Env, mask: Any) -> tuple[Any, Any]:
            view: TypedView = env[slot]
            parts = [np.asarray(fn(env)) for fn in fns]
            base = np.asarray(env[slot + 1])
            base = base[:, None] if base.ndim else base
            mask, base, *parts = np.broadcast_arrays(mask, base, *parts)
            flat = base[mask]
            for part, extent, stride in zip(parts, view.shape, view.strides, strict=True):
                active = part[mask]
                if active.size and active.view(np.uint64).max() >= extent:
                    raise _outside(env, site, name, view, [p[mask] for p in parts], False)
                flat = flat + active * stride
            return mask, flat

        return places

    # ---------------------------------------------------------------------------------- writes
    def store(self, node: BufferStore) -> Fn:
        buffer = node.buffer
        slot, site, name = self._known(buffer), self.site(node), buffer.name
        problem = lane_problem(node)
        if problem is not None and node.value.dtype.lanes > 1:
            raise InterpretError(problem, code="BW757", span=node.span)
        element = node.value.dtype.element
        if element is not buffer.dtype.element:
            raise InterpretError(
                f"a {element} is stored into {name}, which holds {buffer.dtype.element}",
                code="BW757",
                span=node.span,
                help="cast the value",
            )
        value = self.value(node.value)
        if node.predicate is not None:
            return self._masked_store(node, slot, site, value)
        at = self.position(buffer, node.indices, site)
        scalar = node.value.dtype.lanes == 1
        wide = BufferLoad(buffer, node.indices).dtype.lanes > 1
        watched, combined = self.watched(buffer), buffer in self.combined
        how: Touch = "atomic" if combined else "write"
        of_warp = self.launch is not None and copies_of(buffer) == "warp"

        def store(env: Env) -> None:
            view: TypedView = env[slot]
            new, where = value(env), at(env)
            if type(new) is np.ndarray:
                if scalar and wide:
                    new = new[:, None]
                if np.ndim(where) < new.ndim:  # the same element in all lanes: keep the last value
                    new = new[-1]
            if env[1].levels:
                note(env, site, name, view, where, "write")
            if combined:
                _check_apart(env, site, name, where)
            if watched:
                env[1].team.touch(env, site, name, view, where, how, wide=wide)
            if view.shadow is not None:
                view.shadow[where] = view.ones
            view.data[where] = new
            if of_warp:
                _check_agreed(env, site, name, view.data[where], new)

        return self.by_one(store, [buffer.scope])

    def _masked_store(self, node: BufferStore, slot: int, site: Site, value: Fn) -> Fn:
        assert node.predicate is not None
        mask_of, places = self.condition(node.predicate), self._masked_places(node, site)
        name, scalar = node.buffer.name, node.value.dtype.lanes == 1
        watched = self.watched(node.buffer)

        def store(env: Env) -> None:
            view: TypedView = env[slot]
            new = value(env)
            mask, where = places(env, mask_of(env))
            if type(new) is np.ndarray and scalar:
                new = new[:, None]
            if env[1].levels:
                note(env, site, name, view, where, "write")
            if watched:
                env[1].team.touch(env, site, name, view, where, "write", _of_mask(env, mask))
            if view.shadow is not None:
                view.shadow[where] = view.ones
            view.data[where] = np.broadcast_to(new, mask.shape)[mask]

        return self.by_one(store, [node.buffer.scope])

    # ------------------------------------------------------------------------------- addresses
    def pointer(self, expr: Expr) -> Fn:
        """A closure that returns a `Pointer`."""
        if not (isinstance(expr, Call) and expr.op == "address_of"):
            return self._compile(expr)
        place = expr.args[0]
        if not isinstance(place, BufferLoad):
            raise InterpretError("address_of takes a buffer element", code="BW757", span=expr.span)
        slot, site, name = self._known(place.buffer), self.site(expr), place.buffer.name
        at = self.position(place.buffer, place.indices, None)
        wide = place.dtype.lanes > 1  # the position has an axis for the lanes of the vector

        def address(env: Env) -> Pointer:
            view: TypedView = env[slot]
            where = np.min(at(env), axis=-1) if wide else at(env)
            inside = where - env[slot + 1]
            low, high = view.first(), view.reach()
            if np.min(inside) < low or np.max(inside) > high:
                raise _astray(env, site, name, view, inside, low, high)
            first = where if type(where) is np.ndarray else int(where)
            return Pointer(view.storage, first * view.size + view.phase)

        return address


def _check_agreed(env: Env, site: Site, name: str, held: Any, new: Any) -> None:
    """Check that lanes of a warp, which run in lockstep, do not store two values to one element."""
    lost = np.asarray((held != new) & (new == new))
    if lost.any():
        lane = int(np.argmax(lost.reshape(len(lost), -1).any(axis=1)))
        raise site.error(
            env,
            "BW761",
            f"race: lanes of a warp write two different values to an element of {name} here",
            lane,
            "let the lanes write different elements",
        )


def _check_apart(env: Env, site: Site, name: str, where: Any) -> None:
    """Check that threads combining their terms in the same step update different elements."""
    if env[0] > 1 and len(np.unique(where)) < env[0]:
        raise site.error(
            env,
            "BW761",
            f"race: threads with the same term of the reduction update an element of {name} here",
            0,
            "give each thread its own terms or its own results",
        )


def _of_mask(env: Env, mask: Any) -> Any:
    """The thread of each element that a mask enables."""
    me = env[2] if mask.ndim == 1 else env[2][:, None]
    return np.broadcast_to(me, mask.shape)[mask]


def _inside(index: Any, extent: int) -> bool:
    if type(index) is np.ndarray:
        # One comparison for both bounds: negative numbers are huge when unsigned.
        return not index.size or bool(index.view(np.uint64).max() < extent)
    return 0 <= index < extent


def _lifted(fn: Fn) -> Fn:
    def lift(env: Env) -> Any:
        value = fn(env)
        return value[:, None] if type(value) is np.ndarray else value

    return lift


def _place(base: Any, flat: Any, view: TypedView, vector: bool) -> Any:
    if view.lanes > 1:
        flat = np.asarray(flat)[..., None] * view.lanes + np.arange(view.lanes)
        if vector:
            flat = flat.reshape(*flat.shape[:-2], -1)
        return (base[:, None] if type(base) is np.ndarray else base) + flat
    if vector and type(base) is np.ndarray:
        base = base[:, None]
    return base + flat


def _outside(
    env: Env, site: Site, name: str, view: TypedView, indices: list[Any], vector: bool
) -> InterpretError:
    """The error for the first instance whose index is out of bounds."""
    arrays = [a.reshape(-1) for a in np.broadcast_arrays(*indices)]
    width = np.broadcast_shapes(*(np.shape(i) for i in indices))[-1] if vector else 1
    bad = np.zeros(arrays[0].shape, bool)
    for array, extent in zip(arrays, view.shape, strict=True):
        bad |= (array < 0) | (array >= extent)
    first = int(np.argmax(bad))
    index = ", ".join(str(int(a[first])) for a in arrays)
    shape = ", ".join(map(str, view.shape))
    return site.error(
        env,
        "BW751",
        f"{name}[{index}] is outside the buffer's shape ({shape})",
        first // max(width, 1),
        "guard the access with a predicate or if_then_else, or correct the index",
    )


def _astray(
    env: Env, site: Site, name: str, view: TypedView, inside: Any, low: int, high: int
) -> InterpretError:
    """The error for the first lane whose address is neither in a buffer nor at its end."""
    lanes = np.atleast_1d(inside)
    lane = int(np.argmax((lanes < low) | (lanes > high)))
    shape = ", ".join(map(str, view.shape))
    return site.error(
        env,
        "BW751",
        f"the address of element {lanes[lane] // view.lanes} of {name}, "
        f"counted from its first, is outside the buffer of shape ({shape})",
        lane,
        "take the address of an element, or of the end",
    )


def unwritten(
    env: Env, site: Site, name: str, view: TypedView, where: Any, seen: Any, lanes: int
) -> InterpretError:
    flat, bad = np.asarray(where).reshape(-1), np.asarray(seen).reshape(-1) < view.ones
    first = int(np.argmax(bad))
    lane = first // lanes
    base = pick(env[_base_slot(env, view)], lane)
    index = coordinates(int(flat[first]) - int(base), view)
    return site.error(
        env,
        "BW752",
        f"{name}[{index}] is read before it is written",
        lane,
        "write the element first, or add an init to the reduction",
    )


def _base_slot(env: Env, view: TypedView) -> int:
    """The slot that holds the position of a view's element 0."""
    return next(k for k, v in enumerate(env) if v is view) + 1


def note(env: Env, site: Site, name: str, view: TypedView, where: Any, how: Touch) -> None:
    env[1].sites[site.number] = site
    met = record(env[1].levels, view, where, how, site.number)
    if met is None:
        return
    level, first = met
    text = (
        f"race: an element of {name} is {DID[how]} here while another iteration of the "
        f"parallel loop {level.name} also accesses it"
    )
    error = site.error(
        env,
        "BW756",
        text,
        help="make the iterations independent, run the loop serially, or use an atomic operation",
    )
    raise error if first is None else with_first(error, env[1].sites[first[1]], DID[first[0]])
