"""Environments and lanes: one interpreter for single instances and for many instances at once.

An environment is a list. Slot 0 is the number of lanes, or None for a single instance; slot 1 is
the run state; slot 2 is the thread of each lane inside a kernel, otherwise None; other slots hold
variables, views and positions. A value that differs between lanes is an array whose first axis is
the lane; any other value is common to all lanes. Where lanes diverge (conditions, extents), the
environment is compressed to the active lanes, so that nothing is ever computed for an instance that
does not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright.interp.memory import ParallelScope
from blockwright.interp.report import Report
from blockwright.ir import ForKind, IRModule
from blockwright.support import Diagnostic, InterpretError, Span

if TYPE_CHECKING:
    from blockwright.interp.gpu.thread_block import ThreadBlock

Env = list[Any]
Fn = Callable[[Env], Any]
MAX_LANES = 1 << 18
FIRST_SLOT = 3
DID = {"read": "read", "write": "written", "atomic": "updated atomically"}
UNORDERED = (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.THREAD_BINDING)
_numbers = itertools.count()


class Site:
    """A program location, for error messages."""

    __slots__ = ("block", "number", "span", "visible")

    def __init__(self, visible: tuple[tuple[str, int], ...], block: str, span: Span | None) -> None:
        self.visible = visible
        self.block = block
        self.span = span
        self.number = next(_numbers)

    def error(
        self, env: Env, code: str, message: str, lane: int = 0, help: str | None = None
    ) -> InterpretError:
        """An error that names the block and the values of the surrounding variables."""
        values = ", ".join(
            f"{name} = {pick(env[slot], lane)}"
            for name, slot in self.visible
            if env[slot] is not None
        )
        notes = [f"in block {self.block!r}"] if self.block else []
        if values:
            notes.append(f"where {values}")
        return InterpretError(message, code=code, span=self.span, notes=notes, help=help)


def with_first(error: InterpretError, there: Site, did: str, who: str = "") -> InterpretError:
    """Add the earlier of two racing accesses to an error as a second location."""
    where = f" in block {there.block!r}" if there.block else ""
    second = Diagnostic(error.code, f"the other access: {did} here{where}{who}", there.span)
    return InterpretError(
        error.message, code=error.code, help=error.help, diagnostics=[*error.diagnostics, second]
    )


def pick(value: Any, lane: int) -> Any:
    """The value in one lane."""
    return value[min(lane, len(value) - 1)] if type(value) is np.ndarray else value


class Limit:
    """Limit on loop iterations; may be shared by several runs."""

    def __init__(self, iterations: int) -> None:
        self.left = iterations

    def take(self, count: int) -> None:
        """Count iterations that begin.

        Raises: InterpretError BW757: the limit is exceeded.
        """
        self.left -= max(count, 0)
        if self.left < 0:
            raise InterpretError(
                "the run exceeds its limit on loop iterations",
                code="BW757",
                help="raise the limit, or use smaller sizes",
            )


def _no_entry(state: RunState, name: str, args: list[Any], depth: int) -> Any:
    raise InterpretError(f"a kernel cannot call {name!r}", code="BW757")


class RunState:
    """State of one run: options, open parallel loops, constants and callable Python functions.

    Attributes:
        call_entry: calls a program with Python values and a number of active calls.
        team: the threads of the running block, inside a kernel.
        moment: a time later than every action of threads in earlier kernels.
    """

    def __init__(
        self,
        module: IRModule | None,
        *,
        vectorize: bool,
        races: bool,
        order: str | int | None,
        packed: dict[str, Callable[..., Any]],
        report: Report | None = None,
        limit: Limit | None = None,
        call_entry: Callable[[RunState, str, list[Any], int], Any] | None = None,
    ) -> None:
        self.module = module
        self.call_entry: Callable[[RunState, str, list[Any], int], Any] = call_entry or _no_entry
        self.vectorize = vectorize
        self.races = races
        self.packed = packed
        self.reverse = order == "reverse"
        self.random = np.random.default_rng(order) if isinstance(order, int) else None
        self.report = report
        self.levels: list[ParallelScope] = []
        self.team: ThreadBlock | None = None
        self.moment = 1
        self.sites: dict[int, Site] = {}
        self.next_id = 1
        self.failures: dict[Any, int] = {}
        self.constants: dict[str, Any] = {}
        self.memo: dict[Any, Any] = {}  # per closure: results reused from step to step
        self.limit = limit

    def sequence(self, count: int, unordered: bool) -> Iterable[int]:
        """Iteration numbers in the execution order of this run."""
        if self.limit is not None:
            self.limit.take(count)
        if unordered and self.random is not None:
            return [int(k) for k in self.random.permutation(count)]
        return range(count - 1, -1, -1) if unordered and self.reverse else range(count)


class CompiledLoop:
    """A compiled loop header.

    Attributes:
        jumps: whether the body may break or continue.
        free: whether iterations run in any order without race tracking, because they combine.
        waits: whether threads synchronize in the body.
    """

    __slots__ = ("extent", "free", "jumps", "kind", "low", "name", "slot", "waits")

    def __init__(
        self,
        name: str,
        slot: int,
        low: Fn,
        extent: Fn,
        kind: ForKind,
        jumps: bool,
        free: bool = False,
        waits: bool = False,
    ) -> None:
        self.waits = waits
        self.free = free
        self.name = name
        self.slot = slot
        self.low = low
        self.extent = extent
        self.kind = kind
        self.jumps = jumps


class Jump(Exception):
    """Lanes leave an iteration: (number of lanes, program location)."""


class Break(Jump):
    """Leave the innermost loop."""


class Continue(Jump):
    """Continue with the next iteration of the innermost loop."""


class Return(Exception):
    """Leave the function."""


class TooManyLanes(Exception):
    """An expansion would exceed the limit on lanes."""


def compress(env: Env, mask: Any) -> Env:
    """The environment of the lanes selected by `mask`."""
    chosen = np.flatnonzero(mask)
    new = [v[chosen] if type(v) is np.ndarray else v for v in env]
    new[0] = len(chosen)
    return new


def same(a: Any, b: Any) -> bool:
    """Whether two environment entries are certainly equal: identical objects or equal ints."""
    return a is b or (type(a) is int and type(b) is int and a == b)


def narrowed(env: Env, mask: Any, key: object) -> Env:
    """`compress` memoized under `key`: only changed entries are compressed again."""
    memo = env[1].memo
    result = memo.get(key)
    if result is not None and result[0] is mask:
        rows = result[1]
        new = refreshed(env, rows, result[2], result[3])
    else:
        rows = np.flatnonzero(mask)
        new = [v[rows] if type(v) is np.ndarray else v for v in env]
    new[0] = len(rows)
    memo[key] = (mask, rows, list(env), list(new))
    return new


def refreshed(env: Env, rows: Any, before: Env, after: Env) -> Env:
    """`env` compressed to `rows`, reusing `after`, the result for `before`."""
    new = list(after)
    for k, value in enumerate(env):
        if value is not before[k]:
            new[k] = value[rows] if type(value) is np.ndarray else value
    return new


def expand(env: Env, loops: Iterable[CompiledLoop], limit: int) -> Env:
    """One lane per existing lane and loop iteration; no lanes if a loop is empty."""
    new = list(env)
    for loop in loops:
        if new[0] == 0:
            break  # no instance runs, so the bounds must not be evaluated
        low, count, lanes = loop.low(new), loop.extent(new), new[0]
        varies = type(count) is np.ndarray
        top = max(0, int(count.max(initial=0)) if varies else int(count))
        total = top if lanes is None else lanes * top
        if total > limit:
            raise TooManyLanes
        steps = np.arange(top)
        if lanes is None:
            new = [np.broadcast_to(v, (top, *v.shape)) if type(v) is np.ndarray else v for v in new]
            new[0], new[loop.slot] = top, low + steps
            continue
        keep = np.tile(steps, lanes)
        new[loop.slot] = low
        new = [np.repeat(v, top, axis=0) if type(v) is np.ndarray else v for v in new]
        new[0], new[loop.slot] = total, new[loop.slot] + keep
        if varies:
            new = compress(new, keep < np.repeat(count, top))
    return new


def run_loop(env: Env, loop: CompiledLoop, body: Fn) -> None:
    """Run the iterations of one loop in order, in lockstep over the lanes."""
    state: RunState = env[1]
    if loop.jumps and env[0] is not None and not loop.waits:
        for alone in one_by_one(env):
            low, count = pick(loop.low(alone), 0), pick(loop.extent(alone), 0)
            _run_with_jumps(alone, loop.slot, low, count, body)
        return
    low, count = loop.low(env), loop.extent(env)
    if type(count) is np.ndarray:
        _run_ragged(env, loop, body, low, count)
        return
    unordered = loop.kind in UNORDERED
    tracked = unordered and state.races and count > 1
    if tracked:
        level = ParallelScope(loop.name, state.next_id)
        state.next_id += count
        state.levels.append(level)
        base = level.base
        try:
            for step in state.sequence(count, True):
                level.current = base + step
                env[loop.slot] = low + step
                body(env)
        finally:
            state.levels.pop()
        return
    slot = loop.slot
    if loop.jumps:
        _run_with_jumps(env, slot, low, count, body)
        return
    for step in state.sequence(count, unordered or loop.free):
        env[slot] = low + step
        body(env)


def _run_with_jumps(env: Env, slot: int, low: Any, count: int, body: Fn) -> None:
    state: RunState = env[1]
    for step in state.sequence(count, False):
        env[slot] = low + step
        if not run_step(env, body):
            return


def one_by_one(env: Env) -> Iterable[Env]:
    """An environment for each single lane, since lanes may leave a loop at different iterations."""
    if env[0] is None:
        return [env]
    return (compress(env, np.arange(env[0]) == lane) for lane in range(env[0]))


def run_step(env: Env, body: Fn) -> bool:
    """Run one iteration of a loop; return whether the loop continues."""
    try:
        body(env)
    except Jump as jump:
        lanes, site = jump.args
        if lanes != env[0]:
            raise site.error(
                env,
                "BW757",
                "some threads leave the loop here while others continue it and synchronize",
                0,
                "use a condition that does not depend on the thread",
            ) from None
        return isinstance(jump, Continue)
    return True


def _run_ragged(env: Env, loop: CompiledLoop, body: Fn, low: Any, count: Any) -> None:
    """Run lanes with different extents: each step runs the lanes that are not finished.

    Only lanes proven independent get here, so iterations of an unordered loop are tracked by their
    number as in the uniform case.
    """
    state: RunState = env[1]
    tracked = loop.kind in UNORDERED and state.races
    level = ParallelScope(loop.name, state.next_id)
    top = int(count.max(initial=0))
    state.next_id += max(top, 0)
    if tracked:
        state.levels.append(level)
    try:
        for step in state.sequence(top, False):
            level.current = level.base + step
            inner = compress(env, count > step)
            start = low[count > step] if type(low) is np.ndarray else low
            inner[loop.slot] = start + step
            body(inner)
    finally:
        if tracked:
            state.levels.pop()


def run_loops(env: Env, loops: list[CompiledLoop], body: Fn, depth: int = 0) -> None:
    """Run a loop nest in order."""
    if depth == len(loops):
        body(env)
    else:
        run_loop(env, loops[depth], lambda inner: run_loops(inner, loops, body, depth + 1))


def per_lane(env: Env, value: Any, vector: bool) -> Any:
    """A value in the form stored in the environment: a uniform vector gets a lane axis."""
    if vector and env[0] is not None and value.ndim == 1:
        return np.broadcast_to(value, (env[0], *value.shape))
    return value
