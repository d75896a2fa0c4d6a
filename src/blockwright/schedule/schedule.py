"""`Schedule`, the public API: a program, the steps applied so far, and handles that survive."""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.analysis import symbols_of
from blockwright.ir.printer import script
from blockwright.schedule import history
from blockwright.schedule.compose import Compose, Zoom
from blockwright.schedule.display import Shown
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.schedule.engine.record import Primitive
from blockwright.schedule.explain import ComputeAtExplanation, explain_compute_at
from blockwright.schedule.history import Difference, Stage
from blockwright.schedule.primitive import PRIMITIVES
from blockwright.schedule.session import Session, Verify
from blockwright.schedule.trace import Trace
from blockwright.schedule.unsafe import UNSAFE_PRIMITIVES
from blockwright.support import ScheduleError
from blockwright.support.kinds import require_kind

_LEVELS = {
    "off": "no level skips the checks; steps that may change semantics are in sch.unsafe",
}


def _require(value: Any, kind: type, what: str, remedy: str) -> None:
    require_kind(value, kind, what, ScheduleError, "BW304", remedy)


def _require_classic(debug_mask: Any, error_render_level: Any, enable_check: Any) -> None:
    whole = isinstance(debug_mask, int) and not isinstance(debug_mask, bool)
    if not whole and debug_mask not in ("none", "all"):
        raise ScheduleError(
            f"debug_mask={debug_mask!r} is not a mask",
            code="BW304",
            help='use "none", "all" or a number',
        )
    if error_render_level not in ("detail", "fast", "none"):
        raise ScheduleError(
            f"error_render_level={error_render_level!r} is not a level",
            code="BW304",
            help='use "detail", "fast" or "none"',
        )
    if enable_check is not True:
        raise ScheduleError(
            f"enable_check={enable_check!r}: {_LEVELS['off']}",
            code="BW304",
            help="omit enable_check",
        )


class Schedule(Compose, Shown):
    """Transforms a program step by step and checks each step.

    Args:
        program: a tensor program, or a module; every tensor program in it can be scheduled.
        verify: "check" checks the requirements of every step; "full" also checks, initially and
            after every step, that the program is well formed (initially: ValidationError);
            "prove" also proves each step by `bw.verify`: the program computes the same as before.
            A step that is refuted (BW390) or cannot be decided (BW391) is rejected, including
            steps of `sch.unsafe`.
        seed: seed of the sampling primitives; None for different samples on every run.
        debug_mask: accepted for TVM compatibility: "all", or a number other than 0, checks the
            program after every step, as `verify="full"` does.
        error_render_level: "detail", "fast" or "none"; accepted but without effect.
        enable_check: must be True; steps are always checked.

    Raises:
        ScheduleError: on an illegal step, an invalid argument, an unknown name or a stale handle.
            The program is left unchanged.
    """

    def __init__(
        self,
        program: ir.PrimFunc | ir.IRModule,
        verify: Verify | str = "check",
        seed: int | None = 0,
        *,
        debug_mask: str | int = "none",
        error_render_level: str = "detail",
        enable_check: bool = True,
    ) -> None:
        _require_classic(debug_mask, error_render_level, enable_check)
        if verify == "check" and debug_mask not in ("none", 0):
            verify = "full"
        if verify not in ("check", "full", "prove"):
            why = _LEVELS.get(verify)
            raise ScheduleError(
                f"verify={verify!r} is not a level" + (f": {why}" if why else ""),
                code="BW304",
                help='use "check", "full" or "prove"',
            )
        if not isinstance(program, (ir.PrimFunc, ir.IRModule)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ScheduleError(
                f"cannot schedule a {type(program).__name__}",
                code="BW304",
                help="pass a tensor program or a module of them",
            )
        self._module = program if isinstance(program, ir.IRModule) else None
        functions = (
            program.functions if isinstance(program, ir.IRModule) else {program.name: program}
        )
        result = {
            name: function
            for name, function in functions.items()
            if isinstance(function, ir.PrimFunc) and isinstance(function.body, ir.BlockRealize)
        }
        if not result:
            raise ScheduleError(
                "there is no tensor program with blocks to schedule",
                code="BW304",
                help="schedule a program made of T.prim_func with blocks",
            )
        self._session = Session(result, verify, seed)
        self._first = self._session.work_on

    # ------------------------------------------------------------------ the program
    @property
    def func(self) -> ir.PrimFunc:
        """The current program (of a module: the one selected by `work_on`)."""
        return self._session.functions[self._session.work_on]

    @property
    def mod(self) -> ir.IRModule:
        """A module with the current programs."""
        if self._module is None:
            return ir.IRModule(dict(self._session.functions))
        functions = {**self._module.functions, **self._session.functions}
        return self._module.replace(functions=functions)

    def work_on(self, name: str) -> None:
        """Select the program of the module in which names are looked up."""
        _require(name, str, "work_on: the name of a program is text", 'write sch.work_on("main")')
        if name not in self._session.functions:
            known = ", ".join(self._session.functions)
            raise ScheduleError(
                f"no tensor program {name!r} in the module",
                code="BW302",
                help=f"tensor programs: {known}",
            )
        self._session.work_on = name

    def text(self) -> str:
        """The program's script; `show` prints it, a notebook displays it."""
        return script(self.func)

    def symbol(self, name: str) -> ir.Var:
        """A symbolic size or scalar parameter of the program, for factors and index maps."""
        _require(name, str, "symbol: the name of a symbol is text", 'write sch.symbol("n")')
        result = {s.name: s for s in symbols_of(self.func)}
        if name not in result:
            raise ScheduleError(
                f"the program has no symbol {name!r}",
                code="BW302",
                help=f"symbols: {', '.join(result) or 'none'}",
            )
        return result[name]

    def explain_compute_at(self, block: BlockRV | str, loop: LoopRV) -> ComputeAtExplanation:
        """Explain `compute_at(block, loop)` without applying it.

        Reports which axes follow which loops, what each iteration needs, how much would be
        recomputed, and whether the step is legal. `print` shows the result as text.
        """
        chosen = self.get_block(block) if isinstance(block, str) else block
        function = self._session.entry(chosen, "explain_compute_at").function
        state = self._session.state(function, "compute_at")
        return explain_compute_at(state, state.block(chosen), state.loop(loop))

    def copy(self) -> Schedule:
        """An independent schedule in the same state; existing handles are valid in both."""
        other = Schedule.__new__(Schedule)
        other.__dict__.update(self.__dict__)
        other._session = self._session.copy()
        return other

    # ------------------------------------------------------------------ trace and history
    @property
    def trace(self) -> Trace:
        """The steps applied so far."""
        return Trace(tuple(self._session.steps))

    @property
    def history(self) -> list[Stage]:
        """The initial program and the program after each call that changed it."""
        return history.history(self._session)

    def undo(self, n: int = 1) -> None:
        """Undo the last `n` calls that changed the program, and all queries since then.

        A composite call counts as one. Handles returned by undone steps become stale; using one
        raises an error that says so. All other handles refer to what they did before. The random
        state is not restored: the next sample differs.
        """
        _require(n, int, "undo: the number of calls is an integer", "write sch.undo(2)")
        self._session.undo_to(history.steps_before(self._session, n))

    def diff(self, before: int = -2, after: int = -1, *, context: int = 3) -> Difference:
        """The difference of the program between two stages of `history`; by default the last call.

        Args:
            before, after: positions in `history`; negative ones count from the end.
            context: unchanged lines shown around changes.
        """
        for position in (before, after, context):
            _require(position, int, "diff: positions and context are integers", "see sch.history")
        stages = history.history(self._session)
        if len(stages) == 1 and (before, after) == (-2, -1):
            return Difference("")
        return history.difference(stages, before, after, context)

    def take(self, step: Primitive) -> Any:
        """Apply a step given as its record and return its handles.

        For steps that are not methods of `Schedule`, such as primitives defined by another package.
        They are recorded, replayed and undone like all others; pass their record classes to
        `Trace.from_json`.
        """
        _require(
            step,
            Primitive,
            "take: expected the record of a primitive",
            "primitives are also methods: sch.split(loop, [None, 4])",
        )
        return self._run(step)

    def replay(self, trace: Trace) -> list[Handle]:
        """Apply the steps of a trace to this program and return the handles of the last step."""
        _require(trace, Trace, "replay: expected a Trace", "pass the .trace of a schedule")
        return list(self._session.replay(trace.instructions))

    # ------------------------------------------------------------------ sampling
    def seed(self, seed: int) -> None:
        """Seed the sampling primitives from here on."""
        _require(seed, int, "seed: the seed is an integer", "write sch.seed(1)")
        self._session.random.seed(int(seed))

    def fork_seed(self) -> int:
        """A seed for another schedule; each call returns a new one."""
        return self._session.random.getrandbits(31)

    # ------------------------------------------------------------------ composition
    def zoom(self, target: BlockRV | LoopRV | str) -> Zoom:
        """A schedule of the subprogram inside a block or loop; see `Zoom`."""
        return Zoom(self, target)

    def _run(self, record: Primitive) -> Any:
        """Apply one step and return its handles in the form that the record declares."""
        if record.function() is None and self._session.work_on != self._first:
            record = record.in_function(self._session.work_on)
        outputs = self._session.apply(record)
        if record.returns in ("block", "loop", "number"):
            return outputs[0]
        return None if record.returns == "none" else list(outputs)


RECORDS: dict[str, type[Primitive]] = {
    record.path(): record for record in (*PRIMITIVES, *UNSAFE_PRIMITIVES)
}
"""Every primitive that a trace may contain, by its path: "split", "unsafe.set_dtype"."""
