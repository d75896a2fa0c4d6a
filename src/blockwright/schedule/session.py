"""The engine of a schedule: programs, handle table, apply, replay and undo of steps.

Programs are immutable, so undoing a step restores the program before it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, Literal

import msgspec

from blockwright import ir
from blockwright.analysis import symbols_of
from blockwright.analysis.canonical.fold_allocations import fold_allocations
from blockwright.analysis.canonical.memory import plain_memory
from blockwright.analysis.canonical.own_reads import without_own_reads
from blockwright.analysis.validate.well_formed import (
    check_meaning,
    check_well_formed,
    find_problems,
)
from blockwright.schedule.apply_step import applied
from blockwright.schedule.engine.complete_arguments import completed
from blockwright.schedule.engine.fresh_copy import with_fresh_definitions
from blockwright.schedule.engine.handle import (
    BlockRV,
    ExprRV,
    Handle,
    LoopRV,
    handle_kind,
    handle_name,
    new_origin,
)
from blockwright.schedule.engine.instruction import CompositeCall, Instruction
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.engine.remap_handles import resolved, translated, used_handles
from blockwright.schedule.engine.state import (
    SampledLocation,
    StepResult,
    StepState,
    Target,
    explained,
    schedule_error,
)
from blockwright.schedule.serialize.python import call_text, short_value
from blockwright.support import ScheduleError
from blockwright.support.kinds import require_kind
from blockwright.support.stack import deep
from blockwright.verify import verify

Verify = Literal["check", "full", "prove"]


class StaleHandle(msgspec.Struct, frozen=True):
    """Marks a handle without a target, with the step that consumed it or, if undone, created it."""

    step: int
    name: str
    undone: bool = False
    was: str = ""


class Entry(msgspec.Struct, frozen=True, eq=False):
    """The target of a handle, and the function that contains it."""

    function: str
    target: Target | StaleHandle


class AppliedStep(msgspec.Struct, frozen=True, eq=False):
    """The effect of one step: the program before and after, and the handle entries it replaced."""

    function: str
    before: ir.PrimFunc
    after: ir.PrimFunc
    entries: dict[Handle, Entry]


class Session:
    """The functions being scheduled, and the steps applied to them.

    Args:
        functions: tensor programs by name; the first one is selected.
        verify: "check", "full" or "prove"; see `Schedule`.
        seed: seed of the sampling primitives; None for a different one each time.

    Raises:
        ValidationError: for an ill-formed program; if `verify` is "check", only where it uses what
            is not in scope (BW212) or returns inside a concurrent loop (BW618).
    """

    def __init__(
        self, functions: dict[str, ir.PrimFunc], verify: Verify = "check", seed: int | None = 0
    ) -> None:
        self.functions = {
            name: fold_allocations(
                plain_memory(without_own_reads(with_fresh_definitions(function)))
            )
            for name, function in functions.items()
        }
        for function in functions.values():
            check_meaning(function)
        for function in self.functions.values() if verify != "check" else ():
            check_well_formed(function)
        self.verify = verify
        self.origin = new_origin()
        self.work_on = next(iter(functions))
        self.random = random.Random(seed)
        self.steps: list[Instruction] = []
        self.changes: list[AppliedStep] = []
        self.entries: dict[Handle, Entry] = {}
        self._call: CompositeCall | None = None
        self._states: dict[str, StepState] = {}
        self._standing: dict[str, dict[Target, list[Handle]]] = {}
        self._step_name = ""

    def copy(self) -> Session:
        """An independent session in the same state, with its own random state.

        Existing handles are valid in both; new ones only in the session that created them.
        """
        other = Session.__new__(Session)
        other.__dict__.update(self.__dict__)
        other.origin = new_origin()
        other.functions = dict(self.functions)
        other.steps = list(self.steps)
        other.changes = list(self.changes)
        other.entries = dict(self.entries)
        other.random = random.Random(self.random.getrandbits(63))
        other._states = {}
        other._standing = {}
        return other

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore in another process: the result is a copy, with its own handle origin."""
        self.__dict__.update(state)
        self.origin = new_origin()

    # ------------------------------------------------------------------ steps
    def apply(self, record: Primitive) -> tuple[Handle, ...]:
        """Apply one step; if it is rejected, the program is left unchanged."""
        function = self._function_of(record)
        state = self.state(function, record.path())
        try:
            record, step = deep(self._computed)(record, state)
        except ScheduleError as error:
            named = self._with_origins(error, function)
            raise named.with_traceback(error.__traceback__) from error.__cause__
        if step.decision is not None:  # record the sample, so that replay is deterministic
            record = msgspec.structs.replace(record, decision=step.decision)
        outputs = self._commit(function, record, step)
        self.steps.append(Instruction(record, outputs, self._call))
        return outputs

    def _computed(self, record: Primitive, state: StepState) -> tuple[Primitive, StepResult]:
        """Complete the record and compute its result, without changing the session."""
        record = completed(record, state)
        return record, applied(resolved(record, self.number), state)

    def _with_origins(self, error: ScheduleError, function: str) -> ScheduleError:
        """Add notes to the error: which steps returned the loops it names.

        The author of a schedule knows loops by Python variables, not by loop names.
        """
        notes: list[str] = []
        words = set(re.findall(r"\w+", f"{error.message} {error.help}"))
        for number, (step, change) in enumerate(zip(self.steps, self.changes, strict=True)):
            entries = [self.entries[h] for h in step.outputs]
            given = [
                (k, e.target.name)
                for k, e in enumerate(entries, 1)
                if isinstance(e.target, ir.Var)
                and e.function == function
                and e.target.name in words
            ]
            if not given or change.before is change.after:
                continue
            call = f"{self._call_of(number)}, step {number}"
            parts = [
                f"{name} is result {k}" if len(entries) > 1 else f"{name} is the result"
                for k, name in given
            ]
            notes.append(f"{', '.join(parts)} of {call}")
        if not notes:
            return error
        first, *rest = error.diagnostics
        first = msgspec.structs.replace(first, notes=(*first.notes, *notes))
        return ScheduleError.collect([first, *rest])

    def replay(self, steps: Iterable[Instruction]) -> tuple[Handle, ...]:
        """Apply recorded steps, all or none; return the handles of the last one."""
        length, outer = len(self.steps), self._call
        known: dict[Handle, Handle] = {}
        last: tuple[Handle, ...] = ()
        calls: dict[CompositeCall, CompositeCall] = {}
        try:
            for number, step in enumerate(steps):
                if step.call is not None and outer is None:
                    self._call = calls.setdefault(step.call, CompositeCall(step.call.text))
                else:
                    self._call = outer
                with explained(f"step {number} of the trace"):
                    last = self._repeat(step, known)
        except BaseException:
            self.undo_to(length)
            raise
        finally:
            self._call = outer
        return last

    def _repeat(self, step: Instruction, known: dict[Handle, Handle]) -> tuple[Handle, ...]:
        """Apply one recorded step; add its handles to `known` (recorded → new)."""
        record = translated(step.record, known, self.functions[self.work_on])
        result = self.apply(record)
        if len(result) != len(step.outputs):
            raise ScheduleError(
                f"{record.path()}: returns {len(result)} handles here, "
                f"{len(step.outputs)} in the trace",
                code="BW306",
                help="the trace belongs to another program",
            )
        known.update(zip(step.outputs, result, strict=True))
        return result

    @contextmanager
    def composite(self, text: str) -> Generator[None]:
        """Group the steps applied inside into one call; if one is rejected, undo all of them."""
        if self._call is not None:
            yield  # nested: part of the outer call
            return
        length = len(self.steps)
        self._call = CompositeCall(text)
        try:
            yield
        except BaseException:
            self.undo_to(length)
            raise
        finally:
            self._call = None

    def undo_to(self, length: int) -> None:
        """Undo all but the first `length` steps; handles created since then become stale."""
        while len(self.steps) > length:
            step, change = self.steps.pop(), self.changes.pop()
            self.functions[change.function] = change.before
            self.entries.update(change.entries)
            self._standing.pop(change.function, None)
            dead = StaleHandle(len(self.steps), step.record.path(), undone=True)
            for handle in step.outputs:
                self.entries[handle] = Entry(change.function, dead)

    # ------------------------------------------------------------------ one step
    def _function_of(self, record: Primitive) -> str:
        """The function that a step changes: that of its handles, or the selected one."""
        names: set[str] = set()
        for handle in used_handles(record):
            if isinstance(handle, (BlockRV, LoopRV)):
                names.add(self.entry(handle, record.path()).function)
        named = record.function()
        if named is not None:
            if named not in self.functions:
                known = ", ".join(self.functions)
                raise ScheduleError(
                    f"{record.path()}: no tensor program {named!r} to schedule",
                    code="BW302",
                    help=f"tensor programs: {known}",
                )
            names.add(named)
        if len(names) > 1:
            raise ScheduleError(
                f"{record.path()}: the handles belong to different programs",
                code="BW304",
                help="apply one step per program",
            )
        return names.pop() if names else self.work_on

    def state(self, function: str, step_name: str) -> StepState:
        """The state of the current function, as input of a step."""
        state = self._states.get(function)
        if state is None or state.func is not self.functions[function]:
            func = self.functions[function]
            if state is None:
                state = StepState(func, self.resolve, step_name, None, self.random)
            else:
                state = state.following(func)
            state.taken = True
            self._states[function] = state
        state.step_name = self._step_name = step_name
        return state

    def _commit(self, function: str, record: Primitive, step: StepResult) -> tuple[Handle, ...]:
        old = self.functions[function]
        replaced: dict[Handle, Entry] = {}
        if step.func is not old:
            if self.verify != "check":
                from_check = _well_formed(step.func)
                if from_check:
                    raise schedule_error(
                        record.path(),
                        from_check,
                        "BW309",
                        step.func,
                        help="this is a bug in the step, not in its use: report it",
                    )
            if self.verify == "prove":
                _require_proof(record.path(), old, step.func)
            self.functions[function] = step.func
            replaced = self._forward(function, record.path(), step)
        outputs: list[Handle] = []
        standing = self._stands(function)
        for target in step.results:
            handle = self._new_handle(target, step.func)
            self.entries[handle] = Entry(function, target)
            standing.setdefault(target, []).append(handle)
            outputs.append(handle)
        self.changes.append(AppliedStep(function, old, step.func, replaced))
        return tuple(outputs)

    def _new_handle(self, target: Target, func: ir.PrimFunc) -> Handle:
        number = len(self.entries)
        if isinstance(target, ir.Block):
            return BlockRV(number, self.origin)
        if not isinstance(target, int):
            return LoopRV(number, self.origin)
        name = f"v{number}"
        taken = {v.name for v in symbols_of(func)}
        while name in taken:
            name += "_"
        return ExprRV(name, ir.dtype_of("int32"))

    def _forward(self, function: str, name: str, step: StepResult) -> dict[Handle, Entry]:
        """Point every handle to what its target became, or mark it stale; return old entries."""
        tree = self.state(function, name).tree
        replaced: dict[Handle, Entry] = {}
        standing = self._stands(function)
        for target in list(standing):
            result: Target | None = target
            if isinstance(target, ir.Block):
                block = target
                while block in step.forward and block not in tree.block_set:
                    block = step.forward[block]
                result = block if block in tree.block_set else None
            elif isinstance(target, ir.Var):
                result = target if target in tree.loops else None
            if result is target:
                continue
            assert isinstance(target, (ir.Block, ir.Var))
            handles = standing.pop(target)
            dead = StaleHandle(len(self.steps), name, was=target.name)
            for handle in handles:
                replaced[handle] = self.entries[handle]
                self.entries[handle] = Entry(function, dead if result is None else result)
            if result is not None:
                standing.setdefault(result, []).extend(handles)
        return replaced

    def _stands(self, function: str) -> dict[Target, list[Handle]]:
        """The live handles of each target in a function."""
        result = self._standing.get(function)
        if result is None:
            result = self._standing[function] = {}
            for handle, entry in self.entries.items():
                if entry.function == function and not isinstance(entry.target, StaleHandle):
                    result.setdefault(entry.target, []).append(handle)
        return result

    # ------------------------------------------------------------------ handles
    def entry(self, handle: Handle, step_name: str) -> Entry:
        """The entry of a handle; raises BW301 for foreign and stale handles."""
        require_kind(
            handle,
            (BlockRV, LoopRV, ExprRV),
            f"{step_name}: expected a handle",
            ScheduleError,
            "BW304",
            "pass one handle of this schedule",
        )
        entry, name = self.entries.get(handle), handle_name(handle)
        if entry is None:
            raise ScheduleError(
                f"{step_name}: handle {name} belongs to another schedule",
                code="BW301",
                help="use handles that this schedule returned",
            )
        if not isinstance(entry.target, StaleHandle):
            return entry
        dead = entry.target
        kind = handle_kind(handle)
        if dead.undone:
            gone = f"the {kind} behind {name} is gone: step {dead.step}, {dead.name}, "
            raise ScheduleError(
                f"{step_name}: {gone}which returned it, was undone",
                code="BW301",
                help="apply the step again, or get a new handle with get_block or get_loops",
            )
        left = self._left_by(dead.step)
        names = [t.name for t in left.values() if not isinstance(t, (int, SampledLocation))]
        tree = StepState(self.functions[entry.function], self.resolve, step_name).tree
        marks = [
            tree.loops[t] if isinstance(t, ir.Var) else t
            for t in left.values()
            if isinstance(t, (ir.Var, ir.Block))
        ]
        returned = (
            f"use what {dead.name} returned ({', '.join(names)})"
            if names
            else f"{dead.name} returned no handle that is still valid"
        )
        below = {
            b.name: b
            for mark in reversed(marks)
            for b in ([mark] if isinstance(mark, ir.Block) else tree.child_blocks(mark))
        }
        block = next(iter(below), "…")
        anew = f'get_block("{dead.was}")' if kind == "block" else f'get_loops("{block}")'
        raise schedule_error(
            step_name,
            f"{kind} {dead.was} is gone: step {dead.step}, {self._call_of(dead.step)}, consumed it",
            "BW301",
            tree.func,
            marks or tree.child_blocks(tree.func.root),
            help=f"{returned}, or get a new handle: {anew}",
        )

    def _call_of(self, step: int) -> str:
        """The text of a step's call, with loops and blocks by their names at that time."""
        names = {
            h: e.target.was for h, e in self.entries.items() if isinstance(e.target, StaleHandle)
        }

        def value(held: object) -> str:
            if isinstance(held, (BlockRV, LoopRV)):
                target = self.entries[held].target
                return names.get(held) or getattr(target, "name", "") or repr(held)
            return short_value(held)

        return call_text(self.steps[step].record, value)

    def _left_by(self, step: int) -> dict[Handle, Target]:
        """The targets of a step's returned handles that are still valid."""
        result = {handle: self.entries[handle].target for handle in self.steps[step].outputs}
        return {
            handle: target
            for handle, target in result.items()
            if not isinstance(target, StaleHandle)
        }

    def resolve(self, handle: Handle) -> Target:
        """The current target of a handle."""
        target = self.entry(handle, self._step_name).target
        assert not isinstance(target, StaleHandle)
        return target

    def number(self, handle: ExprRV) -> int | None:
        """The sampled number of a handle; None for a variable of the program."""
        if handle not in self.entries:
            return None
        target = self.resolve(handle)
        assert isinstance(target, int)
        return target


def _require_proof(name: str, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    """Require a proof that a step preserves the program's semantics (BW390, BW391)."""
    verdict = verify(before, after)
    if verdict.verdict == "refuted":
        raise schedule_error(
            name,
            f"the step changes what the program computes: {verdict.why}",
            "BW390",
            after,
            help="unless it is a step of sch.unsafe, this is a bug in the step: report it",
        )
    if verdict.verdict == "unknown":
        raise schedule_error(
            name,
            f"the step cannot be proved: {verdict.why}",
            "BW391",
            after,
            help='reach the same program by other steps, or use verify="full", without proofs',
        )


def _well_formed(func: ir.PrimFunc) -> str:
    """The problems of an ill-formed program after a step; empty if there are none."""
    return "; ".join(p.message for p in find_problems(func))
