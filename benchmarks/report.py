"""Report of a comparison with peers: table, JSON file, plot, and missed bounds."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from benchmarks import record
from benchmarks.peers import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.comparison import Result

MEAN, WORST = 1.0, 1.2
"""Bounds on the score: on its geometric mean, and on every case."""
FALLBACK_WORST = 5.0
"""Bound on the fallback's time, relative to the best peer."""
WARM_S = 8.0
"""Bound on the seconds of a second compilation of a model, in a new process."""
EXACT = 10.0
"""Bound on the error of a method with fewer multiplications, relative to the plain sum's."""


def header(width: int) -> str:
    return (
        f"{'case':{width}} {'ours':>10} {'spread':>6} {'best peer':>10} {'ratio':>6} {'score':>6}"
        f" {'limit':>10} {'of it':>6} {'expected':>8} {'error':>7} {'compile':>8}"
        f" {'again':>7} {'code':>7} {'memory':>8} {'drift':>6} {'others':>6}  all, in ms"
    )


def row(result: Result, width: int, title: str = "") -> str:
    """One line of the table, with `title` after the case; a failed case shows its reason."""
    name = f"{result.case.name}{title}"
    ours, best = result.ours, result.best
    shown = [column for column in result.columns if column is not result.ours]
    peers = "  ".join(f"{c.title} {_peer(c.seconds, c.status)}" for c in shown)
    fastest = f"{best.seconds * 1e3:>7.3f} ms" if best else f"{'none':>10}"
    if ours.timing is None:
        missing = ours.status.partition(":")[0]
        reason = " ".join(ours.status.split())[:160]
        return f"{name:{width}} {missing:>17} {fastest}  {peers}\n    {reason}"
    return (
        f"{name:{width}} {ours.seconds * 1e3:>7.3f} ms {ours.timing.spread:>6.1%}"
        f" {fastest} {_number(result.ratio)} {_number(result.score)}"
        f" {result.roofline * 1e3:>7.3f} ms {result.roofline / ours.seconds:>6.1%}"
        f" {_number(result.expected):>8} {ours.error:>7.0e} {ours.compile_s:>6.2f} s"
        f" {_seconds(ours.warm_s):>7} {_kilobytes(ours.code_bytes):>7}"
        f" {ours.memory / 2**20:>4.0f} MiB {result.drift:>6.1%} {result.others:>6.2f}  {peers}"
        + (f"  not counted, runs through {', '.join(ours.external)}" if ours.external else "")
    )


def _seconds(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f} s"


def _kilobytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e3:.0f} kB"


def _peer(seconds: float, status: str) -> str:
    return status.partition(":")[0] if status else f"{seconds * 1e3:.3f}"


def _number(value: float | None) -> str:
    return f"{value:>6.2f}" if value is not None else f"{'-':>6}"


def _compiled_later(result: Result) -> str:
    """The missed bound if `torch.compile`, with an empty cache as well, was ready earlier."""
    peers = [c.compile_s for c in result.peers if c.engine == "inductor" and not c.status]
    ours = result.ours.compile_s
    if not result.case.model or not peers or ours <= min(peers):
        return ""
    return f"{result.case.name}: compiled in {ours:.1f} s, by torch.compile in {min(peers):.1f} s"


def _of_ours(result: Result) -> list[str]:
    """Missed bounds that do not depend on the peers."""
    name, ours = result.case.name, result.ours
    found: list[str] = []
    if ours.external:
        found.append(f"{name}: not counted, it runs through {', '.join(ours.external)}")
    if ours.warm_s > WARM_S:
        found.append(f"{name}: compiled again in {ours.warm_s:.1f} s, bound {WARM_S:.0f} s")
    most, size = result.case.code_limit, ours.code_bytes
    if most is not None and size is not None and size > most:
        found.append(f"{name}: {_kilobytes(size)} of object code, bound {_kilobytes(most)}")
    if ours.error > EXACT * ours.direct_error:
        times = ours.error / ours.direct_error
        found.append(f"{name}: {times:.0f} times the error of the plain sum, bound {EXACT:.0f}")
    return found


def mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def missed(results: Sequence[Result]) -> list[str]:
    """The bounds that do not hold, one sentence each."""
    found: list[str] = []
    for result in results:
        name, limit = result.case.name, result.case.limit
        ours, score, ratio = result.ours, result.score, result.ratio
        if ours.status:
            found.append(f"{name}: {' '.join(ours.status.split())[:300]}")
        elif ours.external:
            pass  # reported below
        elif score is None or ratio is None:
            found.append(f"{name}: no peer to compare with")
        elif score > WORST:
            found.append(f"{name}: score {score:.2f} is above {WORST}")
        fallback, best = result.fallback, result.best
        if fallback is not None and best is not None:
            times = fallback.seconds / best.seconds
            if not times <= FALLBACK_WORST:
                reason = fallback.status or f"{times:.1f} times the best peer's time"
                found.append(f"{name}: the fallback: {' '.join(reason.split())[:300]}")
        if limit is not None and ratio is not None and ratio > limit:
            found.append(f"{name}: {ratio:.2f} of the best peer's time is above {limit}")
        if later := _compiled_later(result):
            found.append(later)
        found += _of_ours(result)
    scores = [result.score for result in results if result.score is not None]
    if scores and mean(scores) > MEAN:
        found.append(f"geometric mean of the scores {mean(scores):.2f} is above {MEAN}")
    return found


def summary(results: Sequence[Result]) -> str:
    """Geometric means over the cases that succeeded."""
    ratios = [result.ratio for result in results if result.ratio is not None]
    scores = [result.score for result in results if result.score is not None]
    done = f"{len(ratios)} of {len(results)} cases"
    if not ratios:
        return done
    return (
        f"{done}; geometric means: ratio {mean(ratios):.2f}, score {mean(scores):.2f}"
        f"; worst score {max(scores):.2f}; faster than every peer in "
        f"{sum(ratio < 1 for ratio in ratios)}"
    )


def write(
    name: str, results: Sequence[Result], settings: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Write ``results/NAME`` as ``.json``, ``.svg`` and ``.md``."""
    found = {
        "settings": dict(settings),
        "summary": summary(results),
        "missed": missed(results),
        "cases": [result.as_json() for result in results],
    }
    record.write(name, before, found)
    (record.RESULTS / f"{name}.svg").write_text(plot(name, results), encoding="utf-8")
    (record.RESULTS / f"{name}.md").write_text(markdown(results), encoding="utf-8")


def markdown(results: Sequence[Result]) -> str:
    """The table in Markdown: our time, the best peer's, and the machine's limit."""
    lines = [
        "| case | ours, ms | best peer, ms | ratio | of the limit | score | expected | compile"
        " | again | code | memory |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        ours, best = result.ours, result.best
        if ours.timing is None or best is None:
            reason = ours.status.partition(":")[0] or "-"
            lines.append(f"| {result.case.name} | {reason}{' |' * 10}")
            continue
        lines.append(
            f"| {result.case.name} | {ours.seconds * 1e3:.3f} ±{ours.timing.spread:.0%}"
            f" | {best.seconds * 1e3:.3f} ({best.title}) | {_number(result.ratio).strip()}"
            f" | {result.roofline / ours.seconds:.0%} | {_number(result.score).strip()}"
            f" | {_number(result.expected).strip()} | {ours.compile_s:.1f} s"
            f" | {_seconds(ours.warm_s)} | {_kilobytes(ours.code_bytes)}"
            f" | {ours.memory / 2**20:.0f} MiB |"
        )
    return "\n".join([*lines, "", summary(results), ""])


SMALLEST, LARGEST = 1 / 8, 8.0
# pixels: width of the names, width of a factor of two, height of a line
LEFT, SCALE, LINE = 250, 70, 22


def plot(name: str, results: Sequence[Result]) -> str:
    """The ratio to the best peer of every case as a bar from 1, on a logarithmic axis."""

    def place(ratio: float) -> float:
        return LEFT + SCALE * math.log2(min(max(ratio, SMALLEST), LARGEST) / SMALLEST)

    height, right = LINE * (len(results) + 3), place(LARGEST)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right + 150:.0f}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="8" y="16" font-weight="bold">{escape(name)}: time of {OURS} / best peer'
        " (left of 1 is faster)</text>",
    ]
    for ratio in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8):
        x, colour = place(ratio), "#444" if ratio == 1 else "#ddd"
        parts.append(f'<line x1="{x}" x2="{x}" y1="44" y2="{height - 8}" stroke="{colour}"/>')
        parts.append(f'<text x="{x}" y="38" text-anchor="middle">{ratio:g}</text>')
    for number, result in enumerate(results):
        y = LINE * (number + 2) + 4
        parts.append(f'<text x="8" y="{y + 14}">{escape(result.case.name)}</text>')
        ratio, best = result.ratio, result.best
        if ratio is None or best is None:
            parts.append(f'<text x="{place(1) + 6}" y="{y + 14}" fill="#a33">no result</text>')
            continue
        start, end = sorted((place(1), place(ratio)))
        colour = "#3a7d44" if ratio <= 1 else "#c1666b"
        parts.append(
            f'<rect x="{start:.1f}" y="{y + 2}" width="{end - start:.1f}" height="{LINE - 6}"'
            f' fill="{colour}"/>'
        )
        label = f"{ratio:.2f} ({best.engine})"
        parts.append(f'<text x="{right + 8}" y="{y + 14}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
