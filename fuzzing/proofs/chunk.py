"""Verdicts on a few random schedules, computed in one worker process."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.support import BlockwrightError
from blockwright.testing.check import assert_same_meaning
from blockwright.testing.generators import random_program
from blockwright.testing.moves import MOVES, Move, NothingToTry, Player
from blockwright.verify import verify
from fuzzing.mutants import mutant

CHUNK = 5
HINTS = frozenset("annotate annotate_buffer_access unannotate unroll".split())
"""Steps that change no block instance, element or order."""


class ProofSettings(msgspec.Struct, frozen=True):
    """Options of drawing, and whether errors are injected.

    Attributes:
        only: the primitive whose steps are judged, half of those drawn; all primitives if empty.
        sizes: "static", "symbolic", "any", or "factors": symbolic, and loops are split by symbols;
            steps before the first such split are not judged.
        unusual: whether programs also have blocks that do more than store one element.
    """

    length: int = 12
    often: tuple[str, ...] = ()
    only: str = ""
    sizes: str = "any"
    mutants: bool = False
    unusual: bool = False


class Verdicts(msgspec.Struct):
    """Results of steps: verdicts by primitive (or error), reasons, seconds, and findings.

    `open` lists the unknown verdicts with their seed, step and reason; `broken` the steps that
    produced an ill-formed program, which is not judged.
    """

    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    seconds: list[float] = []
    open: list[str] = []
    broken: list[str] = []
    wrong: list[str] = []

    def note(self, name: str, verdict: str, why: str, seconds: float) -> None:
        self.counts.setdefault(name, Counter())[verdict] += 1
        if verdict != "proved":
            self.reasons.setdefault(name, Counter())[f"{verdict}: {why[:110]}"] += 1
        self.seconds.append(seconds)

    def add(self, other: Verdicts) -> None:
        for mine, theirs in ((self.counts, other.counts), (self.reasons, other.reasons)):
            for name, counter in theirs.items():
                mine.setdefault(name, Counter()).update(counter)
        self.seconds += other.seconds
        self.open += other.open
        self.broken += other.broken
        self.wrong += other.wrong

    @property
    def steps(self) -> int:
        return len(self.seconds)

    def table(self) -> str:
        """One line per primitive with the most frequent reasons."""
        lines = [f"{'step':26}{'proved':>8}{'unknown':>9}{'refuted':>9}{'share':>8}  why not"]
        for name in sorted(self.counts):
            result = self.counts[name]
            share = result["proved"] / result.total()
            why = "; ".join(
                f"{n}× {text}" for text, n in self.reasons.get(name, Counter[str]()).most_common(2)
            )
            lines.append(
                f"{name:26}{result['proved']:>8}{result['unknown']:>9}"
                f"{result['refuted']:>9}{share:>8.1%}  {why}"
            )
        times = sorted(self.seconds)
        if times:
            quantiles = [times[int(q * (len(times) - 1))] * 1e3 for q in (0.5, 0.95, 0.99, 1)]
            lines.append(
                "milliseconds: median {:.0f}, 95 % {:.0f}, 99 % {:.0f}, worst {:.0f}".format(
                    *quantiles
                )
            )
        return "\n".join(lines)


def judge(first: int, settings: ProofSettings) -> Verdicts:
    """The verdicts on the steps of `CHUNK` seeds from `first` on."""
    result = Verdicts()
    factors = settings.sizes == "factors"
    symbolic = {"static": False, "any": None}.get(settings.sizes, True)
    moves = {**MOVES, "split": Move(_split_by_sizes)} if factors else MOVES
    for seed in range(first, first + CHUNK):
        often = (settings.only,) if settings.only else settings.often
        program = random_program(seed, symbolic=symbolic, unusual=settings.unusual)
        player = Player(program, moves, seed, (*often, "split") if factors else often)
        chance = random.Random(seed)
        for _ in range(settings.length):
            before, taken = player.sch.func, len(player.taken)
            try:
                player.play(1)
            except BlockwrightError as error:  # not a refusal: the step produced no program
                why = str(error).partition("\n")[0]
                result.broken.append(f"seed {seed}, step {taken + 1}: {why}")
                break
            if len(player.taken) == taken or player.sch.func is before:
                continue
            name, after = player.taken[-1], player.sch.func
            if settings.only not in ("", name) or (factors and "split" not in player.taken):
                continue
            if settings.mutants:
                created = mutant(after, chance)
                if created is None or _is_meaningless(created[1]):
                    continue
                name, after = created
            elif name in HINTS:
                continue
            if not settings.mutants:
                # Preparatory steps of a move are not part of its step.
                before = player.sch.history[-2].func
                if ir.structural_equal(before, after):
                    continue
            where = f"seed {seed}, step {len(player.taken)}"
            _judge(result, name, before, after, where, settings.mutants)
    return result


def _split_by_sizes(p: Player) -> None:
    """Split a loop in two or three, with one or two symbolic sizes of the program as factors."""
    sizes = sorted(
        {v for b in p.program.buffers for n in b.shape for v in ir.free_vars(n)},
        key=lambda v: v.name,
    )
    if not sizes:
        raise NothingToTry
    one = p.chance.choice(sizes)
    inner = p.chance.choice([[one], [one], [one, 2], [3, one], [one, p.chance.choice(sizes)]])
    p.kept(*p.sch.split(p.loop(), [None, *inner]))


def _judge(
    found: Verdicts, name: str, before: ir.PrimFunc, after: ir.PrimFunc, where: str, wrong: bool
) -> None:
    start = time.process_time()
    verdict = verify(before, after)
    seconds = time.process_time() - start
    found.note(name, verdict.verdict, verdict.why, seconds)
    if seconds > 2:
        found.reasons.setdefault("(slow)", Counter())[f"{where}: {name} {seconds:.1f} s"] += 1
    if verdict.verdict == "unknown":
        found.open.append(f"{where}: {name}: {verdict.why}")
    missed = wrong and verdict.verdict == "proved" and differ(before, after, range(4))
    if missed or (not wrong and verdict.verdict == "refuted"):
        found.wrong.append(
            f"{where}: {name}: {verdict.verdict}: {verdict.why}\n"
            f"--- before\n{before!r}\n--- after\n{after!r}"
        )


def _is_meaningless(func: ir.PrimFunc) -> bool:
    """Whether something is used outside of its scope, which the interpreter cannot run."""
    return any(problem.code == "BW212" for problem in find_problems(func))


def differ(before: ir.PrimFunc, after: ir.PrimFunc, seeds: Sequence[int]) -> bool:
    """Whether two programs differ on the interpreter, for inputs that are valid for the first.

    Random positions may be out of range of the axis they index.
    """
    return any(not _same(before, after, s) and _same(before, before, s) for s in seeds)


def _same(before: ir.PrimFunc, after: ir.PrimFunc, seed: int) -> bool:
    try:
        assert_same_meaning(before, after, seed=seed)
    except (AssertionError, BlockwrightError):
        return False
    return True
