"""The schedule: a program, the steps taken so far, and handles that survive them."""

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
    "off": "no level skips the checks; steps that may change meaning stand in sch.unsafe",
}


def _require(value: Any, kind: type, what: str, remedy: str) -> None:
    require_kind(value, kind, what, ScheduleError, "BW304", remedy)


def _require_classic(debug_mask: Any, error_render_level: Any, enable_check: Any) -> None:
    whole = isinstance(debug_mask, int) and not isinstance(debug_mask, bool)
    if not whole and debug_mask not in ("none", "all"):
        raise ScheduleError(
            f"debug_mask={debug_mask!r} is no mask",
            code="BW304",
            help='use "none", "all" or a number',
        )
    if error_render_level not in ("detail", "fast", "none"):
        raise ScheduleError(
            f"error_render_level={error_render_level!r} is no level",
            code="BW304",
            help='use "detail", "fast" or "none"',
        )
    if enable_check is not True:
        raise ScheduleError(
            f"enable_check={enable_check!r}: {_LEVELS['off']}",
            code="BW304",
            help="leave enable_check out",
        )


class Schedule(Compose, Shown):
    """Rewrites a program step by step, each step checked.

    Args:
        program: a tensor program, or a module of which every tensor program can be scheduled.
        verify: "check" checks the requirements of every step; "full" also checks, at first and
            after every step, that the program is well formed (at first a ValidationError);
            "prove" also proves, by `bw.verify`, that it computes what it did before the step. A
            step that is refuted (BW390) or cannot be decided (BW391) is refused, also one of
            `sch.unsafe`.
        seed: of what the schedule draws; None for something else on every run.
        debug_mask: as the classic schedule takes it: "all", or a number other than 0, for checks
            of the program after every step, which are those of `verify="full"`.
        error_render_level: "detail", "fast" or "none"; the message of an error is the same in each.
        enable_check: True; a step is always checked.

    Raises:
        ScheduleError: on an illegal step, a bad argument, an unknown name or a dead handle. The
            program stays as it was.
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
        """The program as it is now (of a module: the one worked on)."""
        return self._session.functions[self._session.work_on]

    @property
    def mod(self) -> ir.IRModule:
        """A module with the programs as they are now."""
        if self._module is None:
            return ir.IRModule(dict(self._session.functions))
        functions = {**self._module.functions, **self._session.functions}
        return self._module.replace(functions=functions)

    def work_on(self, name: str) -> None:
        """Choose the program of the module in which names are looked up."""
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
        """The program's text; `show` prints it, a notebook shows it."""
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
        """Which axes a `compute_at(block, loop)` would line up with which loops, what each
        iteration needs, what would be computed again, and whether the step is legal.

        The answer is data; `print` shows it as text. The program stays as it is.
        """
        chosen = self.get_block(block) if isinstance(block, str) else block
        function = self._session.entry(chosen, "explain_compute_at").function
        state = self._session.state(function, "compute_at")
        return explain_compute_at(state, state.block(chosen), state.loop(loop))

    def copy(self) -> Schedule:
        """An independent schedule at the same point; handles work in both."""
        other = Schedule.__new__(Schedule)
        other.__dict__.update(self.__dict__)
        other._session = self._session.copy()
        return other

    # ------------------------------------------------------------------ what has been done
    @property
    def trace(self) -> Trace:
        """The steps taken so far."""
        return Trace(tuple(self._session.steps))

    @property
    def history(self) -> list[Stage]:
        """The program at the start and after each call that changed it."""
        return history.history(self._session)

    def undo(self, n: int = 1) -> None:
        """Take back the last `n` calls that changed the program, and all that was asked since.

        A composite call counts as one. Handles that the steps taken back had made say so when
        used; all others stand for what they stood for before. What is drawn next is new.
        """
        _require(n, int, "undo: the number of calls is an integer", "write sch.undo(2)")
        self._session.undo_to(history.steps_before(self._session, n))

    def diff(self, before: int = -2, after: int = -1, *, context: int = 3) -> Difference:
        """How the program differs between two stages of `history`; what the last call did.

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
        """Take a step given as its record; the handles it returns.

        The way in for steps that are no methods: those of a package of your own. They stand in the
        trace, replay, and are undone like all others; `Trace.from_json` is told of their records.
        """
        _require(
            step,
            Primitive,
            "take: a step is the record of a primitive",
            "primitives are also methods: sch.split(loop, [None, 4])",
        )
        return self._run(step)

    def replay(self, trace: Trace) -> list[Handle]:
        """Take the steps of a trace on this program; the handles of the last step."""
        _require(trace, Trace, "replay: expected a Trace", "pass the .trace of a schedule")
        return list(self._session.replay(trace.instructions))

    # ------------------------------------------------------------------ draws
    def seed(self, seed: int) -> None:
        """Let what is drawn from now on follow from this number."""
        _require(seed, int, "seed: the seed is an integer", "write sch.seed(1)")
        self._session.random.seed(int(seed))

    def fork_seed(self) -> int:
        """A number for the seed of another schedule, different each time."""
        return self._session.random.getrandbits(31)

    # ------------------------------------------------------------------ composition
    def zoom(self, target: BlockRV | LoopRV | str) -> Zoom:
        """The inner problem of a block or loop, as a schedule of its own; see `Zoom`."""
        return Zoom(self, target)

    def _run(self, record: Primitive) -> Any:
        """Take one step and return its handles in the form the record declares."""
        if record.function() is None and self._session.work_on != self._first:
            record = record.in_function(self._session.work_on)
        outputs = self._session.apply(record)
        if record.returns in ("block", "loop", "number"):
            return outputs[0]
        return None if record.returns == "none" else list(outputs)


RECORDS: dict[str, type[Primitive]] = {
    record.path(): record for record in (*PRIMITIVES, *UNSAFE_PRIMITIVES)
}
"""Every step that a trace may hold, by its path: "split", "unsafe.set_dtype"."""
