"""From a PyTorch model to native code and query results, in six steps.

``python -m examples.minilm.demo [--base-python PATH] [--ffi-python PATH]``

``--base-python`` is the interpreter of an environment with Blockwright's base install only,
``--ffi-python`` of one with ``apache-tvm-ffi`` and numpy only; ``make demo`` creates both. Every
number printed is measured in this run. The last table compares them with the project's promises.
The exit status is 1 if a promise other than a latency is broken, because latencies are promised for
two runs of three.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

OUTPUT = Path("build/minilm")
ARTEFACT = OUTPUT / "model.bwx"
os.environ["BLOCKWRIGHT_CACHE_DIR"] = str((OUTPUT / "cache").resolve())

IMPORT_START = time.perf_counter()
import numpy as np
import torch

from examples.minilm import accuracy, elsewhere, engine, model
from examples.minilm.texts import Text, read_texts

TORCH_SECONDS = time.perf_counter() - IMPORT_START

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from examples.minilm.model import Inputs

THREADS = 2
MEBIBYTE = 1 << 20
MEMORY_SLACK = 16 * MEBIBYTE


@dataclass(frozen=True)
class Promise:
    """One line of the final table: a measured value and its limit."""

    name: str
    measured: str
    limit: str
    kept: bool
    fatal: bool = True


@dataclass
class Demo:
    """State shared by the steps."""

    console: Console
    promises: list[Promise] = field(default_factory=list[Promise])
    disturbed: bool = False

    def step(self, number: int, title: str) -> None:
        self.console.print(f"\n[bold cyan]{number}. {title}[/]")

    def line(self, name: str, value: str) -> None:
        self.console.print(f"   {name:<44}{value}", highlight=False)

    def limit(
        self, name: str, value: float, limit: float, form: str = "{:.2f} s", *, fatal: bool = True
    ) -> None:
        """Record a measured value that must not exceed ``limit`` (NaN always breaks it)."""
        texts = form.format(value), "≤ " + form.format(limit)
        self.promises.append(Promise(name, *texts, kept=value <= limit, fatal=fatal))

    def claim(self, name: str, kept: bool, measured: str) -> None:
        self.promises.append(Promise(name, measured, "yes", kept))


def load(demo: Demo) -> model.SentenceEmbedder:
    """Step 1: load the trained model, offline, from an ordinary package."""
    demo.step(1, "Load all-MiniLM-L6-v2 with its trained weights")
    start = time.perf_counter()
    module = model.load_model()
    demo.line("import torch, blockwright's names", f"{TORCH_SECONDS:.2f} s")
    demo.line("load transformers and the weights", f"{time.perf_counter() - start:.2f} s")
    demo.line("parameters", f"{sum(p.numel() for p in module.parameters()):,}")
    seconds, heavy = elsewhere.import_cost()
    demo.line("import blockwright in a new process", f"{seconds:.2f} s")
    demo.limit("import blockwright", seconds, 0.5)
    demo.claim("import loads no torch, tvm_ffi, llvmlite", not heavy, ", ".join(heavy) or "none")
    return module


def export(demo: Demo, module: model.SentenceEmbedder) -> torch.export.ExportedProgram:
    """Step 2: export one graph for all shapes."""
    demo.step(2, "Export with a dynamic batch of 1-64 and 2-512 tokens")
    start = time.perf_counter()
    program = model.export(module)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    kinds = {str(node.target) for node in calls}
    demo.line("torch.export", f"{time.perf_counter() - start:.2f} s")
    demo.line("operator calls", f"{len(calls)} of {len(kinds)} kinds")
    for symbol, (least, most) in model.dynamic_ranges(program).items():
        demo.line(f"range of {symbol}", f"{least} to {most}")
    return program


def compile_once(demo: Demo, program: torch.export.ExportedProgram) -> engine.Compiled:
    """Step 3: compile for all shapes; then again in a new process, from the object cache."""
    demo.step(3, "Compile once for all shapes")
    columns = (
        TextColumn("   {task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=demo.console, transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done, total=total)

        compiled = engine.compile_program(program, threads=THREADS, report=report)
    for stage, seconds in compiled.stages.items():
        if seconds >= 0.005:
            demo.line(f"  {stage}", f"{seconds:.2f} s")
    demo.line("compile, object cache empty", f"{compiled.seconds:.2f} s")
    demo.limit("cold compile", compiled.seconds, 60.0)
    compiled.save(ARTEFACT)
    demo.line("saved artefact", f"{ARTEFACT.stat().st_size / MEBIBYTE:.1f} MiB")
    again = elsewhere.compile_again(OUTPUT / "again.bwx")
    demo.line("torch.export again, in a new process", f"{again['export']:.2f} s")
    demo.line("compile again there, object cache full", f"{again['compile']:.2f} s")
    demo.limit("second compile, new process", again["compile"], 8.0)
    return compiled


def answer(demo: Demo, compiled: engine.Compiled, module: model.SentenceEmbedder) -> list[Inputs]:
    """Step 4: search real text, then compare with PyTorch and with a float64 run."""
    demo.step(4, "Embed a small corpus and answer queries")
    tokenizer = model.load_tokenizer()
    corpus, queries = read_texts("corpus"), read_texts("queries")
    inputs = model.tokenize(tokenizer, [text.sentence for text in corpus])
    asked = model.tokenize(tokenizer, [text.sentence for text in queries])
    similarity = compiled.embed(asked) @ compiled.embed(inputs).T
    table = Table(title=f"best of {len(corpus)} sentences", title_justify="left")
    for title in ("query", "best match", "subject", "cosine"):
        table.add_column(title, justify="right" if title == "cosine" else "left")
    right = 0
    for query, row in zip(queries, similarity, strict=True):
        best: Text = corpus[int(row.argmax())]
        right += best.subject == query.subject
        table.add_row(query.sentence, best.sentence, best.subject, f"{float(row.max()):.3f}")
    demo.console.print(table)
    demo.line("matches on the query's own subject", f"{right} of {len(queries)}")

    single = [model.tokenize(tokenizer, [text.sentence]) for text in queries[:3]]
    probes = [accuracy.random_inputs(*shape) for shape in accuracy.PROBES]
    batches = [inputs, asked, *single, *probes]
    reference = model.load_model(torch.float64)
    found = accuracy.measure(compiled.embed, module, reference, batches)
    demo.line("batches compared (text and random)", str(len(batches)))
    demo.line("largest difference to PyTorch", f"{found.to_torch:.2e}")
    demo.line("distance to a float64 run", f"{found.to_float64:.2e}")
    demo.line("PyTorch's distance to the float64 run", f"{found.torch_to_float64:.2e}")
    demo.limit("largest difference to PyTorch", found.to_torch, 1e-5, "{:.1e}")
    demo.limit("float64 distance / PyTorch's", found.relative, 4.0, "{:.2f}")
    return [inputs, asked]


def latency(demo: Demo) -> None:
    """Step 5: time the saved artefact against PyTorch eager, each in its own process."""
    from benchmarks import minilm

    demo.step(5, f"Latency against PyTorch eager ({THREADS} threads, in turns, median of 7 rounds)")
    demo.console.print("   " + minilm.HEADER, highlight=False)
    results = minilm.run(
        ARTEFACT,
        threads=THREADS,
        on_point=lambda result: demo.console.print("   " + minilm.row(result), highlight=False),
    )
    demo.line("below 1, Blockwright is faster; all rounds:", "benchmarks/results/minilm.json")
    taken = max(result.others for result in results)
    demo.line("cores that other programs kept busy, at most", f"{taken:.1f}")
    demo.disturbed = any(result.disturbed for result in results)
    for result in results:
        shape = f"({result.point['batch']}, {result.point['sequence']})"
        ratio = result.ratio("blockwright", "pytorch")
        demo.limit(f"latency ratio at {shape}", ratio, 1.0, "{:.2f}", fatal=False)


def carry_away(
    demo: Demo,
    compiled: engine.Compiled,
    batches: list[Inputs],
    base_python: str | None,
    ffi_python: str | None,
) -> None:
    """Step 6: run the artefact without torch, without the compiler, and without blockwright."""
    demo.step(6, "Load the saved artefact elsewhere")
    batches = [*batches, accuracy.random_inputs(32, 128)]
    expected = [compiled.embed(inputs).numpy() for inputs in batches]

    base = elsewhere.run_base(ARTEFACT, batches, base_python)
    where = "base install only" if base_python else "this one, other packages hidden"
    report = base.report
    allowed = report["weight_bytes"] + report["activation_bytes"] + MEMORY_SLACK
    loaded = report["loaded"]
    demo.line("environment", where)
    demo.line("load", f"{report['load_seconds'] * 1e3:.0f} ms")
    demo.line("packed weights", f"{report['weight_bytes'] / MEBIBYTE:.1f} MiB")
    demo.line("planned activations", f"{report['activation_bytes'] / MEBIBYTE:.1f} MiB")
    demo.line("peak memory above the imports", f"{report['peak_bytes'] / MEBIBYTE:.1f} MiB")
    demo.line("compiler rooms or heavy packages loaded", ", ".join(loaded) or "none")
    demo.line("largest difference to step 4", f"{apart(base.embeddings, expected):.1e}")
    demo.limit("artefact: same answers", apart(base.embeddings, expected), 1e-6, "{:.0e}")
    demo.claim("artefact: no compiler, no llvmlite", not loaded, ", ".join(loaded) or "none")
    peak, most = report["peak_bytes"] / MEBIBYTE, allowed / MEBIBYTE
    demo.limit("artefact: peak memory", peak, most, "{:.1f} MiB")

    plain = elsewhere.run_plain_ffi(ARTEFACT, batches, ffi_python)
    installed = "installed, not imported" if plain.report["blockwright_installed"] else "absent"
    demo.line("tvm_ffi.load_module; blockwright is", installed)
    demo.line("largest difference to step 4", f"{apart(plain.embeddings, expected):.1e}")
    demo.limit("plain tvm_ffi: same answers", apart(plain.embeddings, expected), 1e-6, "{:.0e}")


def apart(found: Sequence[NDArray[np.float32]], expected: Sequence[NDArray[np.float32]]) -> float:
    """Return the largest absolute difference; NaN if either side contains one."""
    pairs = zip(found, expected, strict=True)
    return float(np.max([np.abs(a - b).max() for a, b in pairs]))


def verdict(demo: Demo) -> int:
    """Print the promises kept and broken; return the exit status."""
    table = Table(title="\nPromises", title_justify="left")
    for title in ("", "measured", "promised", ""):
        table.add_column(title)
    for promise in demo.promises:
        broken = "[bold red]BROKEN[/]" if promise.fatal else "[yellow]missed[/]"
        mark = "[green]kept[/]" if promise.kept else broken
        table.add_row(promise.name, promise.measured, promise.limit, mark)
    demo.console.print(table)
    if demo.disturbed:
        demo.console.print("Other programs kept the machine busy: the latencies say little.")
    if any(not promise.kept and not promise.fatal for promise in demo.promises):
        demo.console.print("A latency missed its mark; the promise is two runs of three.")
    broken = [promise.name for promise in demo.promises if promise.fatal and not promise.kept]
    if broken:
        demo.console.print(f"[bold red]Broken: {'; '.join(broken)}[/]")
    return int(bool(broken))


def main(base_python: str | None, ffi_python: str | None) -> int:
    """Run the six steps; return the exit status."""
    demo = Demo(Console())
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    torch.set_num_threads(THREADS)
    module = load(demo)
    program = export(demo, module)
    compiled = compile_once(demo, program)
    batches = answer(demo, compiled, module)
    latency(demo)
    carry_away(demo, compiled, batches, base_python, ffi_python)
    return verdict(demo)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.minilm.demo")
    parser.add_argument("--base-python", help="interpreter with the base install only")
    parser.add_argument("--ffi-python", help="interpreter with apache-tvm-ffi and numpy only")
    options = parser.parse_args()
    sys.exit(main(options.base_python, options.ffi_python))
