"""Listings of the graph level compile and compute what they say (`script/programs/paper_graph.py`).

What each pass makes of a listing is tested with the pass; here the whole pipeline runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

TEXT = (Path(__file__).parents[1] / "script" / "programs" / "paper_graph.py").read_text()
LISTINGS: ir.IRModule = bw.from_source(TEXT)
F32 = np.float32


def module_of(entry: str) -> ir.IRModule:
    """A listing and the functions that it uses."""
    names, result = [entry], dict[str, Any]()
    while names:
        name = names.pop()
        result[name] = LISTINGS[name]
        used = [v.name for v in ir.walk(LISTINGS[name]) if isinstance(v, ir.GlobalVar)]
        names += [v for v in used if v not in result]
    return ir.IRModule(result)


def compiled(entry: str) -> Any:
    return bw.compile(module_of(entry))[entry]


def whole(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-3, 4, shape).astype(F32)


@pytest.fixture(autouse=True)
def library() -> None:
    ffi = pytest.importorskip("tvm_ffi")

    @ffi.register_global_func("cutlass.rms_norm", override=True)
    def rms_norm(x: Any, out: Any) -> None:
        data = np.from_dlpack(x).astype(F32)
        scale = np.sqrt(np.mean(data * data, axis=-1, keepdims=True) + 1e-6)
        np.from_dlpack(out)[...] = data / scale

    @ffi.register_global_func("cutlass.attention", override=True)
    def attention(x: Any, out: Any) -> None:
        q, k, v = np.from_dlpack(x).transpose(1, 0, 2, 3)
        np.from_dlpack(out)[...] = q + k * v

    @ffi.register_global_func("func_mm_gelu", override=True)
    def mm_gelu(a: Any, b: Any, out: Any) -> None:
        np.from_dlpack(out)[...] = np.maximum(np.from_dlpack(a) @ np.from_dlpack(b), 0)

    @ffi.register_global_func("custom_inplace_update", override=True)
    def update(x: Any) -> None:
        data = np.from_dlpack(x)
        data *= 2


def test_calls_of_programs_libraries_and_functions() -> None:
    exe = compiled("cross_level")
    for rows in (1, 6):
        x = whole(rows, 4)
        grown = np.exp(x)
        normal = grown / np.sqrt(np.mean(grown * grown, axis=-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(exe(x), normal.reshape(-1)[: 2 * rows], rtol=1e-5)


def test_a_library_takes_part_of_a_model() -> None:
    x, w = whole(3, 512), whole(512, 1536)
    q, k, v = (x @ w).reshape(3, 3, 8, 64).transpose(1, 0, 2, 3)
    np.testing.assert_array_equal(compiled("attention")(x, w), q + k * v)


def test_shapes_and_functions_are_values() -> None:
    exe = compiled("subgraph_func_shape_deduce_example")
    for rows, shape in ((5, (3, 7)), (1, (0, 2))):
        found = exe(np.zeros(rows, F32), shape)
        assert [part.shape for part in found] == [
            (4 * rows,),
            (12,),
            (4 * (rows + 1),),
            (shape[0] * shape[1],),
        ]


@pytest.mark.parametrize("name", ["symbolic_shape_fn", "any_shape_fn"])
def test_sizes_that_only_a_call_knows(name: str) -> None:
    exe = compiled(name)
    for rows in (1, 5):
        x = whole(rows, 2, 2)
        np.testing.assert_allclose(exe(x), np.exp(np.unique(x)), rtol=1e-6)


@pytest.mark.parametrize("name", ["before_fusion", "after_fusion"])
def test_the_same_before_and_after_fusion(name: str) -> None:
    exe, x = compiled(name), whole(5, 2)
    np.testing.assert_array_equal(exe(x), np.maximum(2 * x.reshape(-1), 0))


def test_a_workspace_that_the_graph_allocates() -> None:
    x, w = whole(2, 2048), whole(2048, 4096)
    np.testing.assert_array_equal(compiled("lifted_workspace")(x, w), x @ w)


def test_a_region_that_devices_capture_is_called() -> None:
    exe, a, b = compiled("captured"), whole(5, 128), whole(128, 256)
    np.testing.assert_array_equal(exe(a, b), np.maximum(a @ b, 0))


def test_a_packed_function_updates_a_value() -> None:
    x = whole(7)
    wanted = 2 * (np.exp(x) + x)
    np.testing.assert_allclose(compiled("opaque_update")(x), wanted, rtol=1e-6)
    module = module_of("opaque_update")
    np.testing.assert_allclose(bw.interpret(module, x, entry="opaque_update"), wanted, rtol=1e-6)


def test_encoded_weights() -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(0, 1 << 32, (128, 32), "uint32")
    scale = rng.integers(1, 3, (128, 8)).astype("float16")
    columns = np.arange(256)
    decoded = (data[:, columns // 8] >> (columns % 8 * 4).astype("uint32") & 15).astype(F32)
    decoded = (decoded - 7) * scale[:, columns // 32]
    x = rng.integers(-1, 2, (2, 128)).astype("float16")
    found = compiled("encoded")(x, data, scale)
    np.testing.assert_array_equal(found, (x.astype(F32) @ decoded).astype("float16"))
