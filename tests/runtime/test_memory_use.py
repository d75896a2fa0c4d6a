"""Counting the memory that a call takes."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.runtime.memory_use import peak_bytes

TEXT = """
from blockwright.script import ir as I, relax as R, tir as T
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n", 16), "float32")):
        n = T.int64()
        a = R.softmax(x, axis=0)
        return (R.permute_dims(a, axes=(1, 0)), R.sum(a, axes=(0, 1)))
"""


@pytest.fixture(scope="module")
def exe() -> Any:
    bw.set_num_threads(1)
    return bw.compile(bw.from_source(TEXT))


@pytest.mark.parametrize("n", [1, 5, 1000])
def test_results_and_scratch_are_counted(exe: Any, n: int) -> None:
    x = np.ones((n, 16), "f4")
    plan = exe.memory_plan
    assert exe.measure_memory(x) == plan.activation_bytes(x)
    assert plan.activation_bytes(x, threads=3) >= plan.activation_bytes(x)
    assert plan.use(x).live <= plan.use(x).pooled <= plan.use(x).unshared


def test_a_larger_call_before_does_not_count(exe: Any) -> None:
    small, large = np.ones((3, 16), "f4"), np.ones((3000, 16), "f4")
    alone = exe.measure_memory(small)
    exe(large)
    assert exe.measure_memory(small) == alone


def test_loaded_artefacts_count_too(exe: Any, tmp_path: Any) -> None:
    exe.save(tmp_path / "model.bwx")
    loaded = bw.load(tmp_path / "model.bwx")
    x = np.ones((9, 16), "f4")
    assert loaded.measure_memory(x) == loaded.memory_plan.activation_bytes(x)
    assert loaded.memory_plan.values == exe.memory_plan.values


def test_a_library_that_cannot_count_is_refused() -> None:
    library: Any = types.SimpleNamespace(name="libc.so.6")
    with pytest.raises(bw.ArtefactError, match="does not count") as caught:
        peak_bytes(library, lambda: None)
    assert caught.value.code == "BW807"
