"""The schedule: a program, the steps taken so far, and handles that survive them."""

from __future__ import annotations

import sys
from typing import Any, Literal, cast

import msgspec

from blockwright import ir
from blockwright.analysis.well_formed import find_problems
from blockwright.arith import IndexMap
from blockwright.ir.printer import script
from blockwright.schedule.facade import Facade
from blockwright.schedule.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.record import Primitive
from blockwright.schedule.renew import renewed
from blockwright.schedule.state import State, Step, Target, schedule_error
from blockwright.schedule.trace import Instruction, Trace
from blockwright.support import ScheduleError

Verify = Literal["check", "full"]


class _Dead(msgspec.Struct, frozen=True):
    """What a consumed handle stands for: the step that consumed it."""

    step: int
    name: str


class _Entry(msgspec.Struct, frozen=True, eq=False):
    function: str
    target: Target | _Dead


class Schedule(Facade):
    """Rewrites a program step by step, each step checked.

    Args:
        program: a tensor program, or a module of which every tensor program can be scheduled.
        verify: "check" proves the requirements of every step; "full" also checks after every step
            that the program is well formed.

    Raises:
        ScheduleError: on an illegal step, a bad argument, an unknown name or a dead handle. The
            program stays as it was.
    """

    def __init__(self, program: ir.PrimFunc | ir.IRModule, verify: Verify | str = "check") -> None:
        if verify not in ("check", "full"):
            raise ScheduleError(f"verify={verify!r} is not a level", code="BW304",
                                help='use "check" or "full"')  # fmt: skip
        if not isinstance(program, (ir.PrimFunc, ir.IRModule)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(f"cannot schedule a {type(program).__name__}", code="BW304",
                                help="pass a tensor program or a module of them")  # fmt: skip
        self._verify = verify
        self._module = program if isinstance(program, ir.IRModule) else None
        self._functions: dict[str, ir.PrimFunc] = {}
        functions = program.functions if isinstance(program, ir.IRModule) else {
            program.name: program}  # fmt: skip
        for name, function in functions.items():
            if isinstance(function, ir.PrimFunc) and isinstance(function.body, ir.BlockRealize):
                self._functions[name] = renewed(function)
        if not self._functions:
            raise ScheduleError("there is no tensor program with blocks to schedule", code="BW304")
        self._entries: dict[int, _Entry] = {}
        self._states: dict[str, State] = {}
        self._work_on = next(iter(self._functions))
        self._step_name = ""
        self.trace = Trace()

    # ------------------------------------------------------------------ the program
    @property
    def func(self) -> ir.PrimFunc:
        """The program as it is now (of a module: the one worked on)."""
        return self._functions[self._work_on]

    @property
    def mod(self) -> ir.IRModule:
        """A module with the programs as they are now."""
        if self._module is None:
            return ir.IRModule(dict(self._functions))
        return self._module.replace(functions={**self._module.functions, **self._functions})

    def work_on(self, name: str) -> None:
        """Choose the program of the module in which names are looked up."""
        if name not in self._functions:
            known = ", ".join(self._functions)
            raise ScheduleError(f"no tensor program {name!r} in the module", code="BW302",
                                help=f"tensor programs: {known}")  # fmt: skip
        self._work_on = name

    def show(self) -> None:
        """Print the program."""
        sys.stdout.write(script(self.func) + "\n")

    def copy(self) -> Schedule:
        """An independent schedule at the same point; handles work in both."""
        other = Schedule.__new__(Schedule)
        other.__dict__.update(self.__dict__)
        other._functions = dict(self._functions)
        other._entries = dict(self._entries)
        other._states = {}
        return other

    def get(self, handle: Handle) -> ir.Block | ir.For:
        """The node a handle stands for now."""
        entry = self._entry(handle, "get")
        target = entry.target
        if isinstance(target, ir.Var):
            return self._state(entry.function, "get").tree.loops[target]
        assert isinstance(target, ir.Block)
        return target

    def alive(self, handle: Handle) -> bool:
        """Whether a handle still stands for something."""
        found = self._entries.get(handle.id)
        return found is not None and not isinstance(found.target, _Dead)

    # ------------------------------------------------------------------ steps
    def replay(self, trace: Trace) -> list[Handle]:
        """Take the steps of a trace on this program; the handles of the last step."""
        known: dict[Handle, Handle] = {}
        last: tuple[Handle, ...] = ()
        for step in trace:
            record = _mapped(step.record, known, self.func)
            last = self._take(record)
            if len(last) != len(step.outputs):
                raise ScheduleError(f"{step.record.method}: gives {len(last)} handles here, "
                                    f"{len(step.outputs)} in the trace", code="BW306")  # fmt: skip
            known.update(zip(step.outputs, last, strict=True))
        return list(last)

    def _run(self, record: Primitive) -> Any:
        """Take one step and return its handles in the form the record declares."""
        outputs = self._take(record)
        if record.returns in ("block", "loop"):
            return outputs[0]
        return list(outputs) if record.returns in ("blocks", "loops") else None

    def _take(self, record: Primitive) -> tuple[Handle, ...]:
        function = self._function_of(record)
        state = self._state(function, record.method)
        step = record.apply(state)
        outputs = self._commit(function, record, step)
        self.trace = self.trace.extended(Instruction(record, outputs))
        return outputs

    def _function_of(self, record: Primitive) -> str:
        """The program a step works on: that of its handles, or the one worked on."""
        names: set[str] = set()
        for value in _values(record):
            if isinstance(value, (BlockRV, LoopRV)):
                names.add(self._entry(value, record.method).function)
        if len(names) > 1:
            raise ScheduleError(f"{record.method}: the handles belong to different programs",
                                code="BW304")  # fmt: skip
        return names.pop() if names else self._work_on

    def _state(self, function: str, step_name: str) -> State:
        state = self._states.get(function)
        if state is None or state.func is not self._functions[function]:
            memo = None if state is None else state.memo
            state = State(self._functions[function], self._resolve, step_name, memo)
            self._states[function] = state
        state.step_name = self._step_name = step_name
        return state

    def _commit(self, function: str, record: Primitive, step: Step) -> tuple[Handle, ...]:
        old = self._functions[function]
        if step.func is not old:
            if self._verify == "full":
                from_check = _well_formed(step.func)
                if from_check:
                    raise schedule_error(record.method, from_check, "BW309", step.func)
            self._functions[function] = step.func
            self._forward(function, record.method, step)
        outputs: list[Handle] = []
        for target in step.results:
            number = len(self._entries)
            self._entries[number] = _Entry(function, target)
            outputs.append(BlockRV(number) if isinstance(target, ir.Block) else LoopRV(number))
        return tuple(outputs)

    def _forward(self, function: str, name: str, step: Step) -> None:
        """Let every handle stand for what its target became, or name this step."""
        tree = self._state(function, name).tree
        for number, entry in self._entries.items():
            target = entry.target
            if entry.function != function or isinstance(target, _Dead):
                continue
            found: Target | None
            if isinstance(target, ir.Block):
                block = target
                while block in step.forward and block not in tree.block_set:
                    block = step.forward[block]
                found = block if block in tree.block_set else None
            else:
                found = target if target in tree.loops else None
            if found is not target:
                dead = _Dead(len(self.trace), name)
                self._entries[number] = _Entry(function, dead if found is None else found)

    # ------------------------------------------------------------------ handles
    def _entry(self, handle: Handle, step_name: str) -> _Entry:
        entry = self._entries.get(handle.id)
        if entry is None:
            raise ScheduleError(f"{step_name}: handle {handle!r} belongs to another schedule",
                                code="BW301", help="use handles this schedule gave")  # fmt: skip
        if isinstance(entry.target, _Dead):
            dead = entry.target
            kind = "block" if isinstance(handle, BlockRV) else "loop"
            raise ScheduleError(
                f"{step_name}: the {kind} behind {handle!r} is gone: step {dead.step}, "
                f"{dead.name}, consumed it", code="BW301",
                help=f"use the handles that {dead.name} returned, or get_block and "
                "get_loops")  # fmt: skip
        return entry

    def _resolve(self, handle: Handle) -> Target:
        target = self._entry(handle, self._step_name).target
        assert not isinstance(target, _Dead)
        return target


def _values(record: Primitive) -> list[Any]:
    found: list[Any] = []
    for name in record.__struct_fields__:
        value = getattr(record, name)
        found += value if isinstance(value, tuple) else [value]
    return found


def _mapped(record: Primitive, known: dict[Handle, Handle], func: ir.PrimFunc) -> Primitive:
    """The record with the handles of this schedule, and its symbols looked up by name."""
    own = {v.name: v for v in ir.collect(func, ir.Var)}

    def convert(value: Any) -> Any:
        if isinstance(value, (BlockRV, LoopRV)):
            return known.get(value, value)
        if isinstance(value, tuple):
            return tuple(convert(v) for v in cast("tuple[Any, ...]", value))
        if isinstance(value, ir.Expr):
            return ir.substitute(value, {v: own.get(v.name, v) for v in ir.free_vars(value)})
        if isinstance(value, IndexMap):
            symbols = {v: own.get(v.name, v) for e in value.final for v in ir.free_vars(e)
                       if v not in set(value.initial)}  # fmt: skip
            final = tuple(ir.substitute(e, symbols) for e in value.final)
            return IndexMap(value.initial, final, value.separators)
        return value

    changes = {n: convert(getattr(record, n)) for n in record.__struct_fields__}
    return msgspec.structs.replace(record, **changes)


def _well_formed(func: ir.PrimFunc) -> str:
    """What is wrong with a program after a step, in words."""
    problems = find_problems(func)
    return "; ".join(p.message for p in problems)


RECORDS: dict[str, type[Primitive]] = {record.method: record for record in PRIMITIVES}
