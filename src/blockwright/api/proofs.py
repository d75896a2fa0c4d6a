"""Prove the schedules of a compilation: each scheduled program against the unscheduled one."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

import msgspec

from blockwright import ir
from blockwright.build.worker import ProofJob, Proved
from blockwright.build.workers import POOL
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.passes import PassContext
from blockwright.support import BuildError

_BOUNDS = (LOWER_BOUND, UPPER_BOUND)
"""Attributes that a proof depends on; the others do not affect what a program computes."""


class KernelProof(msgspec.Struct, frozen=True):
    """The verdict on one schedule.

    Attributes:
        kernels: names of the kernels with this schedule.
        strategy: name of the strategy that created it.
        verdict: "proved", "refuted" or "unknown"; why: the difference, or the query that failed.
        seconds: time of the proof.
    """

    kernels: tuple[str, ...]
    strategy: str
    verdict: str
    why: str
    seconds: float


class Proofs(msgspec.Struct, frozen=True):
    """The verdicts on all schedules of a model.

    Attributes:
        schedules: one verdict per distinct schedule.
        seconds: total time of all proofs, which run in several processes.
    """

    schedules: tuple[KernelProof, ...]
    seconds: float

    def text(self, width: int = 120) -> str:
        """Render the table as text."""
        from rich.console import Console

        target = io.StringIO()
        Console(file=target, width=width, color_system=None).print(self.table())
        return target.getvalue()

    __str__ = text

    def table(self) -> object:
        """Return a `rich` table of the schedules."""
        from rich.table import Table

        proved = sum(one.verdict == "proved" for one in self.schedules)
        title = f"{proved} of {len(self.schedules)} schedules proved, {self.seconds:.1f} s"
        table = Table(title=title)
        for heading in ("kernel", "strategy", "verdict", "why"):
            table.add_column(heading, overflow="fold")
        table.add_column("s", justify="right")
        for one in self.schedules:
            table.add_row(
                "\n".join(one.kernels), one.strategy, one.verdict, one.why, f"{one.seconds:.2f}"
            )
        return table


class ScheduleProofs:
    """Instrument that records programs before and after scheduling, and proves them equivalent."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[ir.PrimFunc, ir.PrimFunc]] = {}

    def __call__(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        if name == "schedule_programs":
            self._pairs |= dict(_changed(before.functions, after.functions))

    def prove(self, context: PassContext, all_of_them: bool) -> Proofs:
        """Prove all recorded schedules in the worker processes.

        Raises: BuildError: BW643 a schedule was refuted; BW644, with `all_of_them`, a schedule was
        not proved.
        """
        groups = list(_distinct(self._pairs))
        jobs = [_job(names[0], *self._pairs[names[0]]) for names in groups]
        count = 0

        def done() -> None:
            nonlocal count
            count += 1
            context.progress("verify", count, len(jobs))

        context.progress("verify", 0, len(jobs))
        answers = [msgspec.msgpack.decode(a, type=Proved) for a in POOL.run(jobs, done)]
        result = tuple(
            KernelProof(
                names,
                str(self._pairs[names[0]][1].attrs.get("schedule_strategy", "")),
                a.verdict,
                a.why,
                a.seconds,
            )
            for names, a in zip(groups, answers, strict=True)
        )
        _require(result, all_of_them)
        return Proofs(result, sum(one.seconds for one in result))


def _changed(
    before: Mapping[str, ir.Node], after: Mapping[str, ir.Node]
) -> Iterator[tuple[str, tuple[ir.PrimFunc, ir.PrimFunc]]]:
    for name, func in before.items():
        result = after.get(name)
        if isinstance(func, ir.PrimFunc) and isinstance(result, ir.PrimFunc) and result is not func:
            yield name, (func, result)


def _distinct(pairs: Mapping[str, tuple[ir.PrimFunc, ir.PrimFunc]]) -> Iterator[tuple[str, ...]]:
    """Group the names of kernels with equal programs and equal schedules."""
    groups: dict[tuple[int, int], list[list[str]]] = {}
    for name, pair in pairs.items():
        mine = [_bare(func) for func in pair]
        alike = groups.setdefault((ir.structural_hash(mine[0]), ir.structural_hash(mine[1])), [])
        for names in alike:
            other = [_bare(func) for func in pairs[names[0]]]
            if all(map(ir.structural_equal, mine, other)):
                names.append(name)
                break
        else:
            alike.append([name])
    for alike in groups.values():
        yield from map(tuple, alike)


def _bare(func: ir.PrimFunc) -> ir.PrimFunc:
    return func.replace(attrs={k: v for k, v in func.attrs.items() if k in _BOUNDS})


def _job(name: str, before: ir.PrimFunc, after: ir.PrimFunc) -> ProofJob:
    first, second = _bare(before), _bare(after)
    hashes = ir.structural_hash(first), ir.structural_hash(second)
    return ProofJob(name, first.script(), second.script(), hashes)


def _require(found: tuple[KernelProof, ...], all_of_them: bool) -> None:
    wrong = [one for one in found if one.verdict == "refuted"]
    if wrong:
        rules = ", ".join(sorted({repr(one.strategy) for one in wrong}))
        raise BuildError(
            f"schedules change what kernels compute: {_listed(wrong)}",
            code="BW643",
            help="this is a bug in the strategy: please report the model; to disable it, use "
            f'options={{"disabled_strategies": [{rules}]}}',
        )
    left = [one for one in found if one.verdict != "proved"]
    if left and all_of_them:
        raise BuildError(
            f"schedules could not be proved: {_listed(left)}",
            code="BW644",
            help="use verify=True to only list such schedules",
        )


def _listed(found: list[KernelProof]) -> str:
    """Format schedules: inline for one, on separate lines for several."""
    lines = [f"{', '.join(one.kernels)} (strategy {one.strategy}): {one.why}" for one in found]
    return lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)
