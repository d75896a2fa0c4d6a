"""Loop-carried dependence test: whether a buffer can be private to each iteration of a loop.

`private_to(loop, accesses)` is true when no iteration reads what another iteration wrote, so the
buffer may be allocated inside the loop. Either iterations touch disjoint elements, or earlier
writes of the same iteration cover every read. The test is conservative: a dependence that cannot be
disproved counts as loop-carried, and the buffer stays outside the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from blockwright.arith import Analyzer, bound_region
from blockwright.ir import (
    Buffer,
    Expr,
    For,
    Range,
    Var,
    add,
    all_of,
    const,
    const_int,
    free_vars,
    logical_not,
    structural_equal,
    sub,
    substitute,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.lower.access import BufferAccess, Loop, largest, touched_box
from blockwright.lower.rewrite import reads_memory, stable


def private_to(
    loop: For, buffer: Buffer, accesses: Sequence[BufferAccess], analyzer: Analyzer
) -> bool:
    """Whether `buffer` may live inside one iteration of `loop`.

    Args:
        accesses: all accesses of the buffer, all inside the loop; their `loops` start inside it.
        analyzer: knows the ranges of the loop and of its surrounding loops.
    """
    if any(access.opaque for access in accesses):
        return False
    if _disjoint(loop, buffer, accesses, analyzer):
        return True
    question = _undecided(loop, accesses, analyzer)
    if question is None:
        return _covered(accesses, analyzer)
    return _covered(_without(question, accesses), analyzer) and _covered(
        _where_false(question, accesses, analyzer), analyzer
    )


def _covered(accesses: Sequence[BufferAccess], analyzer: Analyzer) -> bool:
    """Whether writes cover every later read of the same iteration, or nothing is written."""
    if not any(access.writes for access in accesses):
        return True
    return all(
        any(_covers(write, read, analyzer) for write in accesses[:position] if write.writes)
        for position, read in enumerate(accesses)
        if read.reads
    )


def _disjoint(
    loop: For, buffer: Buffer, accesses: Sequence[BufferAccess], analyzer: Analyzer
) -> bool:
    """Whether, in some dimension, the box moves by at least its extent per iteration."""
    one = const(1, loop.loop_var.dtype)
    for rng in touched_box(accesses, buffer, analyzer):
        after = substitute(rng.min, {loop.loop_var: E.Add(loop.loop_var, one)})
        step = None if reads_memory(rng) else const_int(analyzer.simplify(E.Sub(after, rng.min)))
        widest = largest(rng.extent, analyzer)
        if step is not None and widest is not None and 0 < widest <= step:
            return True
    return False


# ------------------------------------------------------------------- conditions for all iterations


def _undecided(loop: For, accesses: Sequence[BufferAccess], analyzer: Analyzer) -> Expr | None:
    """A loop-invariant, undecided condition of a write, such as `0 < n`.

    Where it fails, no iteration executes that write, so `private_to` tests both cases separately.
    """
    for access in accesses:
        for guard in access.guards if access.writes else ():
            moving = {loop.loop_var, *(var for var, _ in access.loops)}
            if (
                not reads_memory(guard)
                and not uses_var(guard, moving)
                and (not analyzer.prove(guard))
            ):
                return guard
    return None


def _without(question: Expr, accesses: Sequence[BufferAccess]) -> list[BufferAccess]:
    return [
        dataclasses.replace(
            access,
            guards=tuple(guard for guard in access.guards if not structural_equal(guard, question)),
        )
        for access in accesses
    ]


def _where_false(
    question: Expr, accesses: Sequence[BufferAccess], analyzer: Analyzer
) -> list[BufferAccess]:
    """The accesses that may run where the condition fails."""
    case = analyzer.copy()
    case.learn(logical_not(question))

    def empty(domain: Range) -> bool:
        return case.prove(E.LE(domain.extent, const(0, domain.extent.dtype)))

    return [
        access
        for access in accesses
        if not any(structural_equal(guard, question) for guard in access.guards)
        and not any(empty(domain) for _, domain in access.loops)
    ]


# ------------------------------------------------------------------------------------- coverage


@dataclasses.dataclass
class _Image:
    """Elements that a write reaches in one dimension: [low, low + size), below each limit."""

    low: Expr
    size: Expr
    index: Expr
    limits: list[Expr]


def _covers(write: BufferAccess, read: BufferAccess, analyzer: Analyzer) -> bool:
    """Whether `write`, earlier in the program, is known to write all that `read` reads."""
    shared = 0
    for a, b in zip(write.loops, read.loops, strict=False):
        if a[0] is not b[0]:
            break
        shared += 1
    inside = analyzer.copy()
    for var, domain in write.loops[:shared]:
        inside.bind(var, domain)
    own = write.loops[shared:]
    if not write.sure or any(var in write.left for var, _ in own):
        return False
    images = _images(write, own, inside)
    if images is None:
        return False
    for guard in write.guards:
        if reads_memory(guard):
            return False  # the loaded value may change between the write and the read
        if not _harmless(guard, write, read, inside) and not _limits(guard, own, images, inside):
            return False
    box = bound_region(
        read.region,
        dict(read.loops[shared:]),
        inside,
        stable(all_of(read.guards)),
        tuple(Var("unbounded", r.min.dtype) for r in read.region),
    )
    return all(
        _contains(image, index, rng, read, inside)
        for image, index, rng in zip(images, read.region, box, strict=True)
    )


def _images(
    write: BufferAccess, loops: tuple[Loop, ...], analyzer: Analyzer
) -> list[_Image] | None:
    """The exact box of a write over its own loops; None for gaps or non-rectangular regions."""
    used: set[Var] = set()
    domains = dict(loops)
    images: list[_Image] = []
    exact: set[Var] = set()  # loops without which the box is empty, as it should be
    for rng in write.region:
        mine = [v for v in free_vars(rng.min) if v in domains]
        if used & set(mine) or any(v in domains for v in free_vars(rng.extent)):
            return None
        if reads_memory(rng):
            return None
        used |= set(mine)
        low = substitute(rng.min, {v: domains[v].min for v in mine})
        steps: list[tuple[int, Var]] = []
        for var in mine:
            after = substitute(rng.min, {var: E.Add(var, const(1, var.dtype))})
            step = const_int(analyzer.simplify(E.Sub(after, rng.min)))
            if step is None or step <= 0:
                return None
            steps.append((step, var))
        size = rng.extent
        for step, var in sorted(steps, key=lambda pair: pair[0]):
            if not analyzer.prove(E.LE(const(step, size.dtype), size)):
                return None
            if analyzer.prove(E.EQ(const(step, size.dtype), size)):
                exact.add(var)
            extra = sub(domains[var].extent, 1)
            size = add(size, E.Mul(extra, const(step, extra.dtype)))
        images.append(_Image(low, size, rng.min, []))
    return images if _run(loops, exact, analyzer) else None


def _run(loops: tuple[Loop, ...], exact: set[Var], analyzer: Analyzer) -> bool:
    """Whether all loops other than `exact` have iterations."""
    known = analyzer.copy()
    for var, domain in loops:
        if var not in exact and not known.prove(E.GT(domain.extent, const(0, domain.extent.dtype))):
            return False
        known.bind(var, domain)
    return True


def _harmless(guard: Expr, write: BufferAccess, read: BufferAccess, analyzer: Analyzer) -> bool:
    """Whether a guard of the write excludes no element that the read needs.

    The guard always holds; or the read has the same guard; or it selects the first iteration of
    loops on which the written place does not depend, as the guard of a reduction's initial value.
    """
    loops = dict(write.loops)
    mentioned = [v for v in free_vars(guard) if v in loops]
    if not mentioned:
        return analyzer.prove(guard) or any(structural_equal(guard, g) for g in read.guards)
    placed = {v for rng in write.region for v in free_vars(rng.min)}
    if isinstance(guard, E.EQ) and not placed & set(mentioned):
        start = substitute(guard, {v: loops[v].min for v in mentioned})
        return analyzer.prove(start)
    shared = [v for v in mentioned if v in dict(read.loops)]
    if len(shared) == len(mentioned):
        return any(structural_equal(guard, g) for g in read.guards)
    return False


def _limits(guard: Expr, loops: tuple[Loop, ...], images: list[_Image], analyzer: Analyzer) -> bool:
    """Record a guard `index < bound` as a limit of the matching image; False if none matches."""
    less = _less_than(guard)
    if less is None:
        return False
    own = {var for var, _ in loops}
    for image in images:
        bound = analyzer.simplify(E.Add(E.Sub(less[1], less[0]), image.index))
        if not own & set(free_vars(bound)):
            image.limits.append(bound)
            return True
    return False


def _less_than(guard: Expr) -> tuple[Expr, Expr] | None:
    match guard:
        case E.LT():
            return guard.a, guard.b
        case E.GT():
            return guard.b, guard.a
        case E.LE():
            return guard.a, add(guard.b, 1)
        case E.GE():
            return guard.b, add(guard.a, 1)
        case _:
            return None


def _contains(
    image: _Image, index: Range, box: Range, read: BufferAccess, analyzer: Analyzer
) -> bool:
    if not analyzer.prove(E.LE(image.low, box.min)):
        return False
    stop = add(box.min, box.extent)
    if not analyzer.prove(E.LE(stop, add(image.low, image.size))):
        return False
    return all(
        analyzer.prove(E.LE(stop, limit)) or _stated(index, limit, read, analyzer)
        for limit in image.limits
    )


def _stated(index: Range, limit: Expr, read: BufferAccess, analyzer: Analyzer) -> bool:
    """Whether the read's own guards keep it below the limit."""
    if const_int(index.extent) != 1:
        return False
    for guard in read.guards:
        less = _less_than(guard)
        if less is not None:
            bound = analyzer.simplify(E.Add(E.Sub(less[1], less[0]), index.min))
            if analyzer.prove(E.LE(bound, limit)):
                return True
    return False
