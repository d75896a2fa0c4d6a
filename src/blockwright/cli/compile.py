"""`blockwright compile`: compile a model and save the artefact."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import blockwright as bw
from blockwright.build.dump import PassDump
from blockwright.cli.models import load_model
from blockwright.cli.session import errors, output, size
from blockwright.passes import default_pipeline
from blockwright.support import OptionError

Report = Callable[[str, int, int], None]
Verify = bool | Literal["prove"]


def compile_model(
    text: str,
    path: Path,
    targets: Sequence[str],
    progress: bool | None,
    dump_dir: Path | None,
    verify: Verify,
    fallback: str = "framework",
) -> None:
    """Compile the model that `text` names, save it at `path`, and print times, verdicts, and the
    operators that run in the framework.

    Raises: OptionError (BW9xx) for invalid arguments; the errors of `bw.compile` and `save`.
    """
    if not path.absolute().parent.is_dir():
        raise OptionError(
            f"the folder of {path} does not exist", code="BW915", help=f"mkdir -p {path.parent}"
        )
    machines = [bw.Target(target) for target in targets]
    options: dict[str, Any] = {"fallback": fallback}
    if dump_dir is not None:
        options["instruments"] = [PassDump(dump_dir, setting="--dump-dir")]
    started = time.perf_counter()
    model = load_model(text)
    loaded = time.perf_counter()
    shown = sys.stderr.isatty() if progress is None else progress
    display = progress_display(machines[0]) if shown else contextlib.nullcontext()
    with warnings.catch_warnings(), display as report:
        warnings.filterwarnings("ignore", r"\[BW513\]")  # the summary has it
        compiled = bw.compile(
            model, target=machines, verify=verify, progress=report, options=options
        )
    seconds = time.perf_counter() - loaded
    written = compiled.save(path)
    if compiled.proofs is not None:
        output().print(compiled.proofs.table())
    _summarise(compiled, loaded - started, seconds)
    output().print(f"wrote {path} ({size(written)})")


def _summarise(compiled: bw.CompiledModel, loading: float, seconds: float) -> None:
    console, plan = output(), compiled.memory_plan
    timings = compiled.context.timings
    console.print(f"loaded in {loading:.2f} s, compiled in {seconds:.2f} s")
    slowest = sorted(timings.items(), key=lambda item: -item[1])[:5]
    console.print("  " + ", ".join(f"{name} {spent:.2f} s" for name, spent in slowest))
    kernels = len(compiled.context.traces)
    console.print(f"  {kernels} kernels, weights {size(plan.packed_weight_bytes)}")
    if compiled.fallbacks:
        console.print(f"  {len(compiled.fallbacks)} operators run in the framework:")
    for operator in compiled.fallbacks:
        console.print(f"  {operator}", markup=False, highlight=False, soft_wrap=True)
    for note in compiled.context.notes:
        console.print(f"  note: {note}", markup=False)


@contextlib.contextmanager
def progress_display(target: bw.Target) -> Generator[Report]:
    """Show progress on standard error: temporary bars on a terminal, lines otherwise.

    One bar shows the stage of the pipeline; others show progress within long stages.
    """
    console = errors()
    if not console.is_terminal:
        yield _report_lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    pipeline = {name for name, _ in default_pipeline(target).stages}
    with Progress(*columns, console=console, transient=True) as display:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            bar = "pipeline" if stage in pipeline else stage
            if bar not in tasks:
                tasks[bar] = display.add_task(stage, total=total)
            display.update(tasks[bar], description=stage, completed=done, total=total)

        yield report


def _report_lines(console: Console) -> Report:
    """Return a function that prints a line when a stage starts and when it ends."""
    started: set[str] = set()

    def report(stage: str, done: int, total: int) -> None:
        if stage not in started or done == total:
            started.add(stage)
            console.print(f"{stage} {done}/{total}")

    return report
