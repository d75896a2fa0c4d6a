"""A player draws schedule steps at random, and what it did is then checked from every side."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.analysis import check_well_formed, find_violations
from blockwright.analysis.kernels import kernels
from blockwright.ir.printer import script
from blockwright.schedule import RECORDS, BlockRV, Handle, LoopRV, Schedule, ScheduleError, Trace
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing.check import assert_same_meaning


class NothingToTry(Exception):
    """The program has nothing that the step could be tried on; neither accepted nor refused."""


class Move(msgspec.Struct, frozen=True):
    """How to try one primitive.

    Attributes:
        run: draws arguments and calls the primitive; raises `NothingToTry` where there are none.
        reassociates: whether the step may regroup a sum, so that results may differ by rounding.
    """

    run: Callable[[Player], None]
    reassociates: bool = False


class Tally(msgspec.Struct):
    """What became of the steps tried: accepted, and refused by error code, per primitive."""

    accepted: Counter[str] = msgspec.field(default_factory=Counter[str])
    refused: dict[str, Counter[str]] = {}

    def refuse(self, name: str, code: str) -> None:
        self.refused.setdefault(name, Counter())[code] += 1

    def add(self, other: Tally) -> None:
        self.accepted.update(other.accepted)
        for name, codes in other.refused.items():
            self.refused.setdefault(name, Counter()).update(codes)

    @property
    def steps(self) -> int:
        """Steps accepted in all."""
        return self.accepted.total()

    def table(self) -> str:
        """One line per primitive: accepted, refused, acceptance rate, refusals by code."""
        lines = [f"{'step':26}{'accepted':>9}{'refused':>9}{'rate':>7}  refused by code"]
        for name in sorted({*self.accepted, *self.refused}):
            yes, codes = self.accepted[name], self.refused.get(name, Counter())
            no = codes.total()
            shown = ", ".join(f"{code} {count}" for code, count in codes.most_common())
            lines.append(f"{name:26}{yes:>9}{no:>9}{yes / max(1, yes + no):>7.0%}  {shown}")
        return "\n".join(lines)


class Player:
    """Takes random steps on one program; remembers every handle ever given.

    Args:
        program: what to schedule.
        moves: name → move; the movers call methods of `sch` and draw from `chance`.
        seed: decides everything.
        often: names drawn half of the time.
        schedule: the schedule to play on; one that checks every program when not given.
    """

    def __init__(
        self,
        program: ir.PrimFunc,
        moves: Mapping[str, Move],
        seed: int,
        often: Sequence[str] = (),
        schedule: Schedule | None = None,
    ) -> None:
        self.program = program
        self.moves = moves
        self.often = list(often)
        self.chance = random.Random(seed)
        self.sch = Schedule(program, verify="full") if schedule is None else schedule
        self.handles: list[Handle] = []
        self.taken: list[str] = []
        self.tally = Tally()

    def play(self, steps: int) -> None:
        """Try some steps; a refused one must leave the program as it was."""
        names = list(self.moves)
        for _ in range(steps):
            frequent = bool(self.often) and self.chance.random() < 0.5
            name = self.chance.choice(self.often if frequent else names)
            before, length = self.sch.func, len(self.sch.trace)
            try:
                self.moves[name].run(self)
            except NothingToTry:
                continue
            except ScheduleError as error:
                if not error.code.startswith("BW3") or error.code == "BW309":
                    raise  # not a refusal: the step made a program that is not well formed
                if len(self.sch.trace) == length:
                    assert self.sch.func is before, f"{name} was refused and changed the program"
                self.tally.refuse(name, error.code)
                continue
            if self.sch.func is not before:
                self.taken.append(name)
                self.tally.accepted[name] += 1

    @property
    def exact(self) -> bool:
        """Whether every step taken keeps results to the bit."""
        return not any(self.moves[name].reassociates for name in self.taken)

    # ------------------------------------------------------------------ choices for movers
    def blocks(self) -> list[BlockRV]:
        """All blocks but the root, also those inside others."""
        found: list[BlockRV] = []
        below = self.sch.get_child_blocks(self.sch.get_block("root"))
        while below:
            found += below
            below = [inner for block in below for inner in self.sch.get_child_blocks(block)]
        self.handles += found
        return found

    def block(self) -> BlockRV:
        return self.chance.choice(self.blocks())

    def block_where(self, wanted: Callable[[ir.Block], bool]) -> BlockRV:
        """A block of some kind; there must be one."""
        fitting = [b for b in self.blocks() if wanted(self.node(b))]
        if not fitting:
            raise NothingToTry
        return self.chance.choice(fitting)

    def likely(self, chance: float = 0.8) -> bool:
        """Mostly true: whether to look for arguments that make sense, and not take any."""
        return self.chance.random() < chance

    def node(self, block: BlockRV) -> ir.Block:
        found = self.sch.get(block)
        assert isinstance(found, ir.Block)
        return found

    def for_of(self, loop: LoopRV) -> ir.For:
        found = self.sch.get(loop)
        assert isinstance(found, ir.For)
        return found

    def untouched(self) -> BlockRV:
        """A block under as many loops as it has iterators, as before it was scheduled."""
        fitting = [b for b in self.blocks()
                   if len(self.sch.get_loops(b)) == len(self.node(b).iter_vars) > 0]  # fmt: skip
        if not fitting:
            raise NothingToTry
        return self.chance.choice(fitting)

    def loops(self, block: BlockRV, at_least: int = 1) -> list[LoopRV]:
        """The loops above a block; there must be some."""
        found = self.sch.get_loops(block)
        self.handles += found
        if len(found) < at_least:
            raise NothingToTry
        return found

    def loop(self) -> LoopRV:
        return self.chance.choice(self.loops(self.block()))

    def region(self, kind: str, block: BlockRV | None = None) -> tuple[BlockRV, int, ir.Buffer]:
        """A block, the position of one of its "read" or "write" regions, and its buffer."""
        chosen = self.block() if block is None else block
        node = self.node(chosen)
        regions = node.reads if kind == "read" else node.writes
        if not regions:
            raise NothingToTry
        at = self.chance.randrange(len(regions))
        return chosen, at, regions[at].buffer

    def kept(self, *handles: Handle) -> None:
        """Handles that a step returned; checked at the end like all others."""
        self.handles += handles


def check(player: Player, seed: int) -> None:
    """The program means the same and everything about the schedule holds.

    It is well formed; it computes what it did (to the bit unless a step may regroup a sum); every
    handle stands for a node or names the step that consumed it; the trace brings the program back
    as records, as JSON and as Python; the script brings it back too.
    """
    try:
        check_well_formed(player.sch.func)
        for case in (seed, seed + 1):
            _same_meaning(player.program, player.sch.func, case, player.exact)
        _check_handles(player)
        _check_replay(player)
        ir.assert_structural_equal(from_source(script(player.sch.func)), player.sch.func)
    except Exception as error:
        guilty = first_wrong_step(player, seed)
        where = "" if guilty is None else f", first wrong after step {guilty}"
        before, after = script(player.program), script(player.sch.func)
        error.add_note(f"seed {seed}{where}\n{player.sch.trace}\n"
                       f"--- before\n{before}\n--- after\n{after}")  # fmt: skip
        raise


def _same_meaning(before: ir.PrimFunc, after: ir.PrimFunc, case: int, exact: bool) -> None:
    """Both compute the same; a kernel that is not complete yet is taken as loops in order."""
    if kernels(after) and find_violations(after):
        after = _unbound(after)
    try:
        assert_same_meaning(before, after, seed=case, exact=exact)
    except InterpretError as error:
        if error.code != "BW757":
            raise
        assert_same_meaning(before, _unbound(after), seed=case, exact=exact)


def _unbound(func: ir.PrimFunc) -> ir.PrimFunc:
    def change(node: ir.Node) -> ir.Node | None:
        if isinstance(node, ir.For) and node.kind is ir.ForKind.THREAD_BINDING:
            return node.replace(kind=ir.ForKind.SERIAL, thread=None)
        return None

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))


def first_wrong_step(player: Player, seed: int) -> int | None:
    """The first step of the trace after which the program computes something else."""
    steps = player.sch.trace.instructions
    for number in range(len(steps)):
        sch = Schedule(player.program)
        try:
            sch.replay(Trace(steps[: number + 1]))
            for case in (seed, seed + 1):
                _same_meaning(player.program, sch.func, case, exact=False)
        except Exception:  # noqa: BLE001  whatever goes wrong, it goes wrong here
            return number
    return None


def _check_handles(player: Player) -> None:
    present = {id(n) for n in ir.walk(player.sch.func)}
    for handle in player.handles:
        if player.sch.alive(handle):
            assert id(player.sch.get(handle)) in present
            continue
        try:
            player.sch.get(handle)
        except ScheduleError as error:
            assert "is gone: step " in str(error), error  # noqa: PT017  says which step
        else:
            raise AssertionError(f"{handle!r} is dead and resolves")


def _check_replay(player: Player) -> None:
    fresh, trace, wanted = player.program, player.sch.trace, player.sch.func
    as_records = Schedule(fresh)
    as_records.replay(trace)
    ir.assert_structural_equal(as_records.func, wanted)
    data: list[Any] = json.loads(json.dumps(trace.as_json()))
    as_json = Schedule(fresh)
    as_json.replay(Trace.from_json(data, RECORDS, fresh))
    ir.assert_structural_equal(as_json.func, wanted)
    as_python = Schedule(fresh)
    symbols = {v.name: v for b in fresh.buffers for d in b.shape for v in ir.free_vars(d)}
    exec(trace.as_python(), {"sch": as_python, **symbols})  # noqa: S102  a text made by us, in tests
    ir.assert_structural_equal(as_python.func, wanted)
