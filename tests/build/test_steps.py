"""Steps that look at one program each are shared out among processes, and remembered."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from blockwright import ir
from blockwright.build import ObjectCache
from blockwright.build.compile_cache import CompileCache
from blockwright.build.steps import each
from blockwright.build.worker import StepJob
from blockwright.build.workers import WorkerPool
from blockwright.script.ir import from_source
from blockwright.support import BuildError
from blockwright.target import Target

HERE = Target("native")
DOUBLED = """
@T.prim_func
def {name}(A: T.Buffer((9, n), "float32"), B: T.Buffer((9, n), "float32"), n: T.int64):
    for i, j in T.grid(9, n):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
"""


def renamed(func: ir.PrimFunc, target: Target, options: str) -> ir.PrimFunc:
    """A step for tests, which workers find in this module."""
    if func.name == "unlucky":
        raise BuildError(f"{func.name} cannot be {options}", code="BW603")
    return func.with_attrs(renamed=f"{options} {func.name} for {target.num_threads}")


def programs(*names: str) -> dict[str, ir.PrimFunc]:
    text = DOUBLED.replace("(9, n)", "(9, 20)").replace(", n: T.int64", "").replace("n)", "20)")
    return {name: from_source(text.format(name=name)) for name in names}


@pytest.fixture
def compile_cache(tmp_path: Path) -> CompileCache:
    return CompileCache(ObjectCache(tmp_path))


@pytest.mark.parametrize("count", [2, 12])
def test_results_come_under_the_names_of_the_programs(
    compile_cache: CompileCache, count: int
) -> None:
    """Few are worked out here, many by several processes; both see the same."""
    given = programs(*(f"f{k}" for k in range(count)))
    progress: list[int] = []
    found = each(renamed, given, HERE, "once", compile_cache, lambda: progress.append(1))
    assert list(found) == list(given)
    assert len(progress) == count
    for name, func in found.items():
        assert func.attrs["renamed"] == f"once {name} for {HERE.num_threads}"
        # Callers go on with their own parameters, wherever the result was made.
        assert func.params == given[name].params
        assert all(a is b for a, b in zip(func.buffers, given[name].buffers, strict=True))


def test_what_is_remembered_is_not_worked_out(compile_cache: CompileCache) -> None:
    given = programs(*(f"f{k}" for k in range(8)))
    first = each(renamed, given, HERE, "once", compile_cache)
    assert compile_cache.find("renamed", given["f3"], HERE, "once") is not None
    again = each(renamed, programs(*given), HERE, "once", compile_cache)
    for name in given:
        ir.assert_structural_equal(first[name], again[name])


@pytest.mark.parametrize("count", [2, 12])
def test_the_error_of_a_step_is_its_own(compile_cache: CompileCache, count: int) -> None:
    given = programs(*(f"f{k}" for k in range(count - 1)), "unlucky")
    with pytest.raises(BuildError, match="unlucky cannot be once") as caught:
        each(renamed, given, HERE, "once", compile_cache)
    assert caught.value.code == "BW603"


def test_a_worker_can_be_started_ahead() -> None:
    """It has loaded the step when it is idle, and serves the next jobs."""
    pool = WorkerPool(2)
    pool.start(StepJob("renamed", f"{__name__}:renamed", b""))
    until = time.monotonic() + 60
    while not (idle := list(pool._idle)) and time.monotonic() < until:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.01)
    try:
        assert len(idle) == 1
        assert pool._take() is idle[0]  # pyright: ignore[reportPrivateUsage]
    finally:
        for worker in idle:
            worker.stop()


def test_nobody_is_started_where_this_process_does_all() -> None:
    pool = WorkerPool(1)
    pool.start(StepJob("renamed", f"{__name__}:renamed", b""))
    assert not pool._idle  # pyright: ignore[reportPrivateUsage]
