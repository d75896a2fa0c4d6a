"""What earlier compilations worked out is not done again, and nothing else is taken for it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import ObjectCache, build
from blockwright.build.compile_cache import CompileCache
from blockwright.script.ir import from_source
from blockwright.target import Target

DOUBLED = """
@T.prim_func
def main(A: T.Buffer((9, 20), "float32"), B: T.Buffer((9, 20), "float32")):
    for i, j in T.grid(9, 20):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
"""
MODEL = """
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor(("n", 32), "float32"), w: R.Tensor((32, 48), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.relu(y)
            R.output(z)
        return z
"""
HERE = Target("native")
BUILDING = importlib.import_module("blockwright.build.module")


@pytest.fixture
def compile_cache(tmp_path: Path) -> CompileCache:
    return CompileCache(ObjectCache(tmp_path))


def forbidden(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("this was worked out before")


def test_a_second_build_does_not_lower_again(
    compile_cache: CompileCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    func = from_source(DOUBLED)
    first = build(func, compile_cache=compile_cache)
    monkeypatch.setattr(BUILDING, "lower", forbidden)
    monkeypatch.setattr(BUILDING, "find_violations", forbidden)
    again = build(from_source(DOUBLED), compile_cache=compile_cache)
    assert again.source() == first.source()
    assert ir.structural_equal(again.lowered, first.lowered)
    out = np.empty((9, 20), np.float32)
    again(np.ones((9, 20), np.float32), out)
    np.testing.assert_array_equal(out, np.full((9, 20), 2.0, np.float32))


@pytest.mark.parametrize(
    ("text", "target", "sanitize"),
    [
        (DOUBLED.replace("* 2.0", "* 3.0"), HERE, ()),
        (DOUBLED.replace("def main", "def other"), HERE, ()),
        (DOUBLED, Target(HERE, num_threads=HERE.num_threads + 1), ()),
        (DOUBLED, HERE, ("bounds",)),
    ],
    ids=["program", "name", "target", "options"],
)
def test_anything_else_is_lowered(
    text: str,
    target: Target,
    sanitize: tuple[str, ...],
    compile_cache: CompileCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(from_source(DOUBLED), HERE, compile_cache=compile_cache)
    monkeypatch.setattr(BUILDING, "lower", forbidden)
    with pytest.raises(AssertionError, match="worked out before"):
        build(from_source(text), target, sanitize=sanitize, compile_cache=compile_cache)


def test_symbols_and_buffers_are_those_of_the_program(compile_cache: CompileCache) -> None:
    """Other functions of a module share them."""
    text = DOUBLED.replace("9", "n").replace("(A:", "(n: T.int64, A:")
    first, again = from_source(text), from_source(text)
    for func in (first, again):
        flat = build(func, compile_cache=compile_cache).lowered["main"]
        assert flat.params == func.params
        assert {v for v in ir.free_vars(flat.body) if v.name == "n"} == {func.params[0]}


def test_an_invalid_program_is_refused_every_time(compile_cache: CompileCache) -> None:
    shifted = "T.axis.spatial(9, i + 1), T.axis.spatial(20, j)"
    beyond = from_source(DOUBLED.replace('T.axis.remap("SS", [i, j])', shifted))
    for _ in range(2):
        with pytest.raises(bw.ValidationError):
            build(beyond, compile_cache=compile_cache)


def test_who_watches_the_passes_sees_them(compile_cache: CompileCache) -> None:
    build(from_source(DOUBLED), compile_cache=compile_cache)
    seen: list[str] = []
    build(
        from_source(DOUBLED),
        compile_cache=compile_cache,
        on_pass=lambda name, *_: seen.append(name),
    )
    assert "lower_blocks" in seen


def test_a_result_with_a_value_that_cannot_be_written_is_not_kept(
    compile_cache: CompileCache,
) -> None:
    func = from_source(DOUBLED)
    compile_cache.keep("odd", func, HERE, (), func.with_attrs(hook=lambda: None))
    assert compile_cache.find("odd", func, HERE, ()) is None


def test_a_result_too_deep_to_be_written_is_not_kept(compile_cache: CompileCache) -> None:
    deep: ir.Expr = ir.var("x", "bool")
    for _ in range(5000):
        deep = ir.Not(deep)
    compile_cache.keep("deep", from_source(DOUBLED), HERE, (), deep)
    assert compile_cache.find("deep", from_source(DOUBLED), HERE, ()) is None


def test_a_second_compilation_schedules_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", str(tmp_path))
    first = bw.compile(from_source(MODEL))
    monkeypatch.setattr("blockwright.strategies.try_strategies", forbidden)
    monkeypatch.setattr(BUILDING, "find_violations", forbidden)
    again = bw.compile(from_source(MODEL))
    assert {n: t.as_python() for n, t in again.context.traces.items()} == {
        n: t.as_python() for n, t in first.context.traces.items()
    }
    x, w = (
        np.random.default_rng(1).standard_normal(s).astype("float32") for s in ((5, 32), (32, 48))
    )
    np.testing.assert_array_equal(again(x, w), first(x, w))
    np.testing.assert_allclose(again(x, w), np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)


def test_nothing_is_kept_without_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", "")
    compile_cache, func = CompileCache(), from_source(DOUBLED)
    compile_cache.keep("lower", func, HERE, (), func)
    assert compile_cache.find("lower", func, HERE, ()) is None
