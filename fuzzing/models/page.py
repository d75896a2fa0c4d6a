"""The page of the survey: which architectures run by which route."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fuzzing.models.catalog import CATALOG
from fuzzing.models.trial import ROUTES, Trial

_HEAD = """# Model coverage

Architectures in small configurations with random weights, beside PyTorch, each by three routes:
*static*, `bw.compile(model, example_kwargs=...)`; *dynamic*, exported for any batch and length or
image size; *ONNX*, through `torch.onnx.export(dynamo=True)` with dynamic axes. The number is the
largest error relative to the largest element of a result. Written by
`python -m fuzzing.models --page docs/model-coverage.md` (see [fuzzing.md](fuzzing.md)); no operator
runs in the framework.

"""


def page(trials: Sequence[Trial]) -> str:
    """Markdown with a table of all trials, and the reasons of those that do not run."""
    by = {(t.architecture, t.route): t for t in trials}
    names = [name for name in CATALOG if any((name, route) in by for route in ROUTES)]
    lines = [_HEAD + "| architecture | family | static | dynamic | ONNX |", "|---|---|---|---|---|"]
    for name in names:
        cells = " | ".join(_cell(by.get((name, route))) for route in ROUTES)
        lines.append(f"| {name} | {CATALOG[name].family} | {cells} |")
    lines += ["", _summary(trials), "", "## What does not run", ""]
    for trial in trials:
        found = trial.outcome
        if found.what != "passed":
            words = found.words.replace("|", "\\|")
            lines.append(
                f"- {trial.architecture}, {trial.route}: {_WORDS[found.what]} {found.code} {words}"
            )
    return "\n".join(lines) + "\n"


_WORDS = {
    "export": "the export fails or makes a size constant:",
    "eager": "the configuration does not run in PyTorch:",
    "refused": "refused:",
    "wrong": "wrong:",
    "internal": "internal error:",
}


def _cell(trial: Trial | None) -> str:
    if trial is None:
        return ""
    if trial.outcome.what == "passed":
        return f"{trial.error:.0e}"
    return f"{trial.outcome.what} {trial.outcome.code}".strip()


def _summary(trials: Sequence[Trial]) -> str:
    parts: list[str] = []
    for route in ROUTES:
        counts = Counter(t.outcome.what for t in trials if t.route == route)
        if counts:
            listed = ", ".join(f"{n} {what}" for what, n in counts.most_common())
            parts.append(f"{route}: {listed}")
    return "; ".join(parts) + "."
