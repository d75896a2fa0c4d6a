"""Calls as Relax programs write them mean the same as calls with the names of our operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support import ScriptError

SAME = {
    'R.astype(x, "float16")': 'R.astype(x, dtype="float16")',
    "R.permute_dims(x, [1, 0])": "R.permute_dims(x, axes=[1, 0])",
    "R.sum(x, axis=[1], keepdims=False)": "R.sum(x, axes=[1], keepdims=False)",
    "R.mean(x, [1])": "R.mean(x, axes=[1])",
    "R.max(x, axis=1, keepdims=True)": "R.max(x, axes=1, keepdims=True)",
    "R.expand_dims(x, 0)": "R.expand_dims(x, axis=0)",
    "R.concat((x, x), 1)": "R.concat((x, x), axis=1)",
    "R.clip(x, 0, 1)": "R.clip(x, min=0, max=1)",
    "R.clip(x, R.prim_value(0), R.prim_value(1))": "R.clip(x, min=0, max=1)",
    'R.full((2, n), R.const(1.5, "float32"), "float32")': (
        'R.full((2, n), fill_value=1.5, dtype="float32")'
    ),
    'R.full_like(x, R.const(2.0, "float32"))': "R.full_like(x, fill_value=2.0)",
    'R.zeros((4, n), "int32")': 'R.zeros((4, n), dtype="int32")',
    'R.empty((4, n), dtype="f32")': 'R.zeros((4, n), dtype="float32")',
    'R.builtin.alloc_tensor(R.shape([4]), dtype="f32", runtime_device_index=0)': (
        'R.zeros((4,), dtype="float32")'
    ),
    'R.builtin.alloc_tensor(R.shape([4]), R.dtype("f32"), R.prim_value(0), R.str("global"))': (
        'R.zeros((4,), dtype="float32")'
    ),
    'R.memory.alloc_storage(R.shape([16]), R.prim_value(0), R.str("global"), R.dtype("uint8"))': (
        'R.zeros((16,), dtype="uint8")'
    ),
    'R.memory.alloc_tensor(x, R.prim_value(0), R.shape([4]), R.dtype("float32"))': (
        'R.zeros((4,), dtype="float32")'
    ),
    'R.memory.alloc_tensor(x, 0, R.shape([4]), "float32", R.prim_value(0))': (
        'R.zeros((4,), dtype="float32")'
    ),
    'R.memory.alloc_tensor(x, R.shape([4]), dtype="float32")': 'R.zeros((4,), dtype="float32")',
    "R.arange(8)": "R.arange(end=8)",
    'R.arange(0, n, 1, "float32")': 'R.arange(begin=0, end=n, step=1, dtype="float32")',
    "R.split(x, 2)": "R.split(x, indices_or_sections=2)",
    "R.split(x, sections=2)": "R.split(x, indices_or_sections=2)",
    "R.split(x, [1, 3], axis=1)": "R.split(x, indices_or_sections=[1, 3], axis=1)",
    "R.repeat(x, 2, 1)": "R.repeat(x, repeats=2, axis=1)",
    "R.topk(x, 2, -1, largest=False)": "R.topk(x, k=2, axis=-1, largest=False)",
    'R.matmul(x, R.permute_dims(x), out_dtype="void")': (
        "R.matmul(x, R.permute_dims(x), out_dtype=None)"
    ),
    'R.take(x, R.const([0], "int64"), axis=0, mode="fast")': (
        'R.take(x, R.const([0], "int64"), axis=0)'
    ),
    'R.gather_elements(x, R.const([[0]], "int64"), axis=0)': (
        'R.gather(x, R.const([[0]], "int64"), axis=0)'
    ),
    "R.mod(x, x)": "R.fmod(x, x)",
    "x % x": "R.remainder(x, x)",
    "R.nn.relu(x)": "R.relu(x)",
    "R.nn.softmax(x, -1)": "R.softmax(x, axis=-1)",
    "R.nn.leakyrelu(x, 0.1)": "R.leaky_relu(x, alpha=0.1)",
    "R.nn.gelu_tanh(x)": 'R.gelu(x, approximate="tanh")',
    "R.nn.pad(x, [0, 1, 2, 0])": (
        'R.pad(x, pad_width=[[0, 1], [2, 0]], pad_value=0, pad_mode="constant")'
    ),
    "R.nn.layer_norm(x, w, w, axes=[-1], epsilon=1e-6, center=True, scale=True)": (
        "R.layer_norm(x, w, w, axes=[-1], eps=1e-6)"
    ),
    "R.nn.rms_norm(x, w, axes=[-1], epsilon=1e-6)": "R.rms_norm(x, w, axes=[-1], eps=1e-6)",
}

VALUES: dict[str, Callable[[Any], Any]] = {
    "R.strided_slice(x, [0, 1], [1, 0], [4, 8], [2, 3])": lambda x: x[1:4:2, ::3],
    "R.strided_slice(x, axes=[1], begin=[2], end=[5])": lambda x: x[:, 2:5],
    "R.variance(x, axis=[1])": lambda x: x.var(axis=1),
    "R.std(x, axis=[1], keepdims=True)": lambda x: x.std(axis=1, keepdims=True),
    "R.stack((x, x), axis=1)": lambda x: np.stack([x, x], 1),
    "R.tile(x, (2, 3))": lambda x: np.tile(x, (2, 3)),
    "R.ewise_fma(x, x, x)": lambda x: x * x + x,
    'R.index_tensor(x, (R.const([1, 3], "int64"),))': lambda x: x[[1, 3]],
}


def function(value: str) -> ir.IRModule:
    return bw.from_source(f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8,), "float32"), s: R.Tensor(("n",))):
        n = T.int64()
        y = {value}
        return y
""")


@pytest.mark.parametrize("spelling", SAME)
def test_another_spelling_of_the_same_call(spelling: str) -> None:
    found = function(spelling)
    ir.assert_structural_equal(found, function(SAME[spelling]))
    bw.validate(found)


@pytest.mark.parametrize("call", VALUES)
def test_compositions(call: str) -> None:
    x = np.arange(32, dtype="float32").reshape(4, 8) % 7
    found = bw.interpret(function(call), x, np.ones(8, "float32"), np.ones(3, "float32"))
    np.testing.assert_allclose(found, VALUES[call](x), rtol=1e-6)


def test_attention_with_the_sequence_before_the_heads() -> None:
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 1, 5, 2, 4)).astype("float32")
    module = bw.from_source("""
@R.function
def main(q: R.Tensor((1, 5, 2, 4), "float32"), k: R.Tensor((1, 5, 2, 4), "float32"),
         v: R.Tensor((1, 5, 2, 4), "float32")):
    y = R.nn.attention(q, k, v, causal_mask="TopLeft")
    return y
""")
    scores = np.einsum("bihd,bjhd->bhij", q, k) / 2
    scores = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    wanted = np.einsum("bhij,bjhd->bihd", weights, v)
    np.testing.assert_allclose(bw.interpret(module, q, k, v), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        "R.relu(x, 1, 2)",
        "R.split(x, 2, 0, 1)",
        "R.split(x, 2, sections=2)",
        "R.sum(x, axis=1, axes=1)",
        'R.take(x, R.const([0], "int64"), mode="wrap")',
        "R.nn.layer_norm(x, w, w, axes=[-1], center=False)",
        "R.stack(x)",
        "R.tile(x)",
        'R.nn.attention(x, x, x, causal_mask="BottomRight")',
        'R.memory.alloc_storage(R.shape([16]), 0, R.str("shared"), "uint8")',
        'R.memory.alloc_tensor(x, "float32")',
        'R.builtin.alloc_tensor(R.shape([4]), R.dtype("f32"), R.prim_value(0), R.str("shared"))',
    ],
)
def test_what_cannot_be_called_is_refused(call: str) -> None:
    with pytest.raises((ScriptError, bw.ValidationError)) as caught:
        bw.validate(function(call))
    assert caught.value.code in ("BW106", "BW401")


def test_sizes_of_tensors_with_a_known_number_of_dimensions() -> None:
    """The same as a cast that binds symbols; a size that the annotation states is that."""
    form = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor({})):
        {}
        y = R.add(x, R.broadcast_to(R.const(1.0, "float32"), (n, m)))
        return y, R.zeros((n, 2), "float32")
"""
    sizes = "n = R.get_shape_value(x, axis=0); m: R.Object = R.get_shape_value(x, axis=-1)"
    stated = bw.from_source(form.format('("n", "m"), "float32"', "n, m = T.int64(), T.int64()"))
    assert ir.structural_equal(bw.from_source(form.format('("n", "m"), "float32"', sizes)), stated)
    for given in (stated, bw.from_source(form.format('ndim=2, dtype="float32"', sizes))):
        for shape in ((3, 2), (0, 5)):
            x = np.ones(shape, "float32")
            total, zeros = bw.compile(given)(x)
            np.testing.assert_array_equal(total, x + 1)
            assert zeros.shape == (shape[0], 2)
