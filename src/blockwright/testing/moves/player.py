"""Applies random schedule steps to a program."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.schedule import BlockRV, Handle, LoopRV, Schedule, ScheduleError


class NothingToTry(Exception):
    """The program has nothing to try the step on; counted neither as accepted nor as refused."""


class Move(msgspec.Struct, frozen=True):
    """How to try one primitive.

    Attributes:
        run: draws arguments and calls the primitive; raises `NothingToTry` if there are none.
        reassociates: whether the step, or a later one that builds on it, may regroup a sum, so that
            results may differ by rounding.
    """

    run: Callable[[Player], None]
    reassociates: bool = False


class Tally(msgspec.Struct):
    """Counts of steps tried per primitive: accepted, and refused by error code."""

    accepted: Counter[str] = msgspec.field(default_factory=Counter[str])
    refused: dict[str, Counter[str]] = {}

    def refuse(self, name: str, code: str, count: int = 1) -> None:
        self.refused.setdefault(name, Counter())[code] += count

    def add(self, other: Tally) -> None:
        self.accepted.update(other.accepted)
        for name, codes in other.refused.items():
            self.refused.setdefault(name, Counter()).update(codes)

    @property
    def steps(self) -> int:
        """Total number of accepted steps."""
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
    """Applies random steps to one program and records all handles.

    Args:
        program: the program to schedule.
        moves: name → move; moves call methods of `sch` and draw from `chance`.
        seed: determines all choices.
        often: names drawn half of the time.
        schedule: the schedule to apply steps to; by default, one that verifies every program.
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
        """Try a number of steps; a refused step must leave the program unchanged."""
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
                    raise  # not a refusal: the step produced an ill-formed program
                if len(self.sch.trace) == length:
                    assert self.sch.func is before, f"{name} was refused and changed the program"
                self.tally.refuse(name, error.code)
                continue
            if self.sch.func is not before:
                self.taken.append(name)
                self.tally.accepted[name] += 1

    @property
    def exact(self) -> bool:
        """Whether every step taken preserves results bit for bit."""
        return not any(self.moves[name].reassociates for name in self.taken)

    # ------------------------------------------------------------------ choices for movers
    def blocks(self) -> list[BlockRV]:
        """All blocks except the root, including nested ones."""
        result: list[BlockRV] = []
        below = self.sch.get_child_blocks(self.sch.get_block("root"))
        while below:
            result += below
            below = [inner for block in below for inner in self.sch.get_child_blocks(block)]
        self.handles += result
        return result

    def block(self) -> BlockRV:
        return self.chance.choice(self.blocks())

    def block_where(self, wanted: Callable[[ir.Block], bool]) -> BlockRV:
        """Draw a block that satisfies a condition; raise `NothingToTry` if there is none."""
        fitting = [b for b in self.blocks() if wanted(self.node(b))]
        if not fitting:
            raise NothingToTry
        return self.chance.choice(fitting)

    def likely(self, chance: float = 0.8) -> bool:
        """True with the given probability: for choosing suitable arguments over arbitrary ones."""
        return self.chance.random() < chance

    def node(self, block: BlockRV) -> ir.Block:
        result = self.sch.get(block)
        assert isinstance(result, ir.Block)
        return result

    def for_of(self, loop: LoopRV) -> ir.For:
        result = self.sch.get(loop)
        assert isinstance(result, ir.For)
        return result

    def untouched(self) -> BlockRV:
        """Draw a block with one loop per iterator, as before scheduling."""
        fitting = [
            b
            for b in self.blocks()
            if len(self.sch.get_loops(b)) == len(self.node(b).iter_vars) > 0
        ]
        if not fitting:
            raise NothingToTry
        return self.chance.choice(fitting)

    def loops(self, block: BlockRV, at_least: int = 1) -> list[LoopRV]:
        """The loops above a block; raise `NothingToTry` if there are fewer than `at_least`."""
        result = self.sch.get_loops(block)
        self.handles += result
        if len(result) < at_least:
            raise NothingToTry
        return result

    def loop(self) -> LoopRV:
        return self.chance.choice(self.loops(self.block()))

    def region(self, kind: str, block: BlockRV | None = None) -> tuple[BlockRV, int, ir.Buffer]:
        """Draw a block and one of its "read" or "write" regions: block, position, buffer."""
        chosen = self.block() if block is None else block
        node = self.node(chosen)
        regions = node.reads if kind == "read" else node.writes
        if not regions:
            raise NothingToTry
        at = self.chance.randrange(len(regions))
        return chosen, at, regions[at].buffer

    def kept(self, *handles: Handle) -> None:
        """Record handles that a step returned; they are checked at the end."""
        self.handles += handles
