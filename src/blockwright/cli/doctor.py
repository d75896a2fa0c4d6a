"""`blockwright doctor`: report on the machine and the installation, and check that they work.

Each probe is a function that returns lines of the report. An exception in a probe becomes a line
too, so that one broken part does not hide the others.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec
from rich.text import Text

from blockwright import __version__
from blockwright.cli.session import output, size
from blockwright.support import BlockwrightError

REQUIRED = ("apache-tvm-ffi", "llvmlite", "ml_dtypes", "msgspec", "numpy", "rich", "typer")
OPTIONAL = {"torch": "torch", "onnx": "onnx", "islpy": "prove", "z3-solver": "prove"}
_MODULES = {"apache-tvm-ffi": "tvm_ffi"}
_MINIMUM = (3, 11)
_MARKS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "broken": ("FAIL", "bold red")}


class CheckLine(msgspec.Struct, frozen=True):
    """One line of the report.

    The state "broken" marks something that compiling or running requires; `remedy` is the fix.
    """

    name: str
    value: str
    state: Literal["ok", "note", "broken"] = "ok"
    remedy: str = ""


Probe = Callable[[], list[CheckLine]]


def describe_target(name: str) -> None:
    """Print all figures of a target. Raises: TargetError BW650, BW651."""
    from blockwright.target import Target

    output().print(Text(Target(name).describe()), soft_wrap=True)


def examine() -> bool:
    """Run all probes and print their lines. Returns whether everything required works."""
    console = output()
    healthy = True
    for probe in PROBES:
        for finding in findings(probe):
            healthy = healthy and finding.state != "broken"
            mark, style = _MARKS[finding.state]
            line = Text.assemble((mark, style), f"  {finding.name:<17}{finding.value}")
            if finding.remedy:
                line.append(f"\n        remedy: {finding.remedy}")
            console.print(line)
    console.print("everything required works" if healthy else "something required is broken")
    return healthy


def findings(probe: Probe) -> list[CheckLine]:
    """Run a probe; an exception becomes a line of state "broken"."""
    try:
        return probe()
    except BlockwrightError as error:
        remedy = error.help or f"see blockwright explain {error.code}"
        return [CheckLine(_title(probe), f"[{error.code}] {error.message}", "broken", remedy)]
    except Exception as error:  # noqa: BLE001  a broken installation can raise anything
        text = f"{type(error).__name__}: {error}"
        return [CheckLine(_title(probe), text, "broken", "reinstall blockwright and its packages")]


def _title(probe: Probe) -> str:
    return probe.__name__.removeprefix("probe_").replace("_", " ")


def probe_python() -> list[CheckLine]:
    """Check the Python interpreter and the operating system."""
    version = f"{platform.python_version()} at {sys.executable}"
    python = CheckLine("python", version)
    if sys.version_info < _MINIMUM:
        wanted = ".".join(map(str, _MINIMUM))
        python = CheckLine("python", version, "broken", f"use Python {wanted} or newer")
    system = CheckLine("system", f"{platform.system()} {platform.release()} {platform.machine()}")
    if platform.system() != "Linux":
        system = CheckLine(
            "system", system.value, "broken", "compiled libraries are Linux ELF files"
        )
    return [CheckLine("blockwright", __version__), python, system]


def probe_packages() -> list[CheckLine]:
    """Check that required packages can be imported, and list the optional ones."""
    result: list[CheckLine] = []
    for name in REQUIRED:
        try:
            importlib.import_module(_MODULES.get(name, name))
            result.append(CheckLine(name, importlib.metadata.version(name)))
        except Exception as error:  # noqa: BLE001  a broken package can raise anything
            result.append(
                CheckLine(
                    name,
                    f"cannot be imported: {error}",
                    "broken",
                    f"pip install --force-reinstall {name}",
                )
            )
    for name, extra in OPTIONAL.items():
        try:
            result.append(CheckLine(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            result.append(
                CheckLine(name, f'not installed (optional: pip install "blockwright[{extra}]")')
            )
    return result


def probe_llvm() -> list[CheckLine]:
    """Report the LLVM version."""
    from blockwright.codegen.llvm.binding import llvm_version

    llvm, _, binding = llvm_version().partition("/")
    return [CheckLine("llvm", f"{llvm} through llvmlite {binding}")]


def probe_processor() -> list[CheckLine]:
    """Report features, vector registers and caches of the native target."""
    from blockwright.runtime.cpu_features import reported_features
    from blockwright.target import Target, host_cpu_name

    target = Target("native")
    features = [name for name in reported_features(target.arch) if target.has(name)]
    caches = ", ".join(
        f"L{level} {size(cache.size)}" for level, cache in enumerate(target.caches, 1)
    )
    vector = f"{target.vector_bits} bits, {target.vector_registers} registers"
    result = [
        CheckLine("processor", f"{host_cpu_name()} ({target.triple})"),
        CheckLine("features", " ".join(features) or "the architecture's baseline"),
        CheckLine("vectors", vector),
        CheckLine("caches", caches),
    ]
    if target.arch == "x86_64" and not target.fma:
        result.append(
            CheckLine(
                "fma", "absent: products and sums are rounded separately and run slower", "note"
            )
        )
    return result


def probe_threads() -> list[CheckLine]:
    """Report the thread count and what limits it."""
    from blockwright.runtime import threads

    allowed, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    used = threads.num_threads()
    chosen = os.environ.get(threads.ENVIRONMENT)
    reasons = [f"{present} processors"]
    if allowed < present:
        reasons.append(f"{allowed} allowed by affinity")
    if chosen is not None:
        reasons.append(f"{threads.ENVIRONMENT}={chosen}")
    elif used < allowed:
        reasons.append(f"cgroup quota {used}")
    result = [CheckLine("threads", f"{used} ({', '.join(reasons)})")]
    if used > allowed:
        result.append(
            CheckLine(
                "threads",
                f"more threads than the {allowed} allowed processors: threads wait for each other",
                "note",
                f"unset {threads.ENVIRONMENT}",
            )
        )
    return result


def probe_cache() -> list[CheckLine]:
    """Check the directory of compiled objects. Compilation works without it but is slower."""
    from blockwright.build.cache import DEFAULT_LIMIT, cache_directory

    folder = cache_directory()
    if folder is None:
        empty = os.environ.get("BLOCKWRIGHT_CACHE_DIR") == ""
        reason = "BLOCKWRIGHT_CACHE_DIR is empty" if empty else "no home directory"
        remedy = "" if empty else "set BLOCKWRIGHT_CACHE_DIR to a writable directory"
        return [CheckLine("object cache", f"off ({reason})", "note", remedy)]
    files = [path.stat().st_size for path in folder.glob("*/*.o")]
    filled = f"{folder}: {len(files)} objects, {size(sum(files))} of {size(DEFAULT_LIMIT)}"
    if not _writable(folder):
        return [
            CheckLine(
                "object cache",
                f"{folder} is not writable: nothing is cached",
                "note",
                "set BLOCKWRIGHT_CACHE_DIR to a writable directory",
            )
        ]
    return [CheckLine("object cache", filled)]


def _writable(folder: Path) -> bool:
    """Whether files can be created in the folder, or in its nearest existing parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@contextmanager
def _no_object_cache() -> Generator[None]:
    """Disable the object cache, so that the trial compiles."""
    before = os.environ.get("BLOCKWRIGHT_CACHE_DIR")
    os.environ["BLOCKWRIGHT_CACHE_DIR"] = ""
    try:
        yield
    finally:
        del os.environ["BLOCKWRIGHT_CACHE_DIR"]
        if before is not None:
            os.environ["BLOCKWRIGHT_CACHE_DIR"] = before


def probe_compile_and_run() -> list[CheckLine]:
    """Compile, link, load and call a tiny program."""
    import numpy as np

    from blockwright.build import build

    x = np.arange(1000, dtype="float32")
    y = np.zeros_like(x)
    started = time.perf_counter()
    with _no_object_cache():
        function = build(_tiny_program())["doctor"]
    built = time.perf_counter()
    function(x, y)
    called = time.perf_counter()
    if not np.array_equal(y, 2 * x + 1):
        return [
            CheckLine(
                "compile and run",
                "the compiled program returned a wrong result",
                "broken",
                "please report the processor and the versions above",
            )
        ]
    best = min(_seconds(function, x, y) for _ in range(20))
    value = (
        f"built in {(built - started) * 1e3:.0f} ms, "
        f"first call {(called - built) * 1e3:.2f} ms, then {best * 1e6:.1f} µs"
    )
    return [CheckLine("compile and run", value)]


def _tiny_program() -> Any:
    from blockwright import ir
    from blockwright.script.compute import Program

    length = ir.var("n", "int64")
    program = Program("doctor")
    x = program.param("x", (length,), "float32")
    two, one = ir.const(2.0, "float32"), ir.const(1.0, "float32")

    def body(i: ir.Expr) -> ir.Expr:
        return ir.add(ir.mul(x[i], two), one)

    return program.finish([program.compute("y", (length,), body)])


def _seconds(function: Callable[..., Any], *args: Any) -> float:
    started = time.perf_counter()
    function(*args)
    return time.perf_counter() - started


PROBES: tuple[Probe, ...] = (
    probe_python,
    probe_packages,
    probe_llvm,
    probe_processor,
    probe_threads,
    probe_cache,
    probe_compile_and_run,
)
