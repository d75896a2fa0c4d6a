"""Every pass keeps what a module computes, by the interpreter of graph functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext
from blockwright.passes.compare_passes import ComparePasses
from blockwright.passes.rewrite import map_calls

F32 = "float32"
PIPELINE = bw.default_pipeline()


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(F32)


def constant(*shape: int) -> str:
    """A constant of a script."""
    return f"R.const({random(*shape).tolist()}, 'float32')"


MODELS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "perceptron": (
        f"""
def main(x: R.Tensor(("n", 5), "float32")):
    n = T.int64()
    a = R.gelu(R.linear(x, {constant(6, 5)}, {constant(6)}))
    b = R.linear(a, {constant(5, 6)})
    return (R.softmax(R.add(b, x), axis=-1), R.sum(b, axes=(0,)))
""",
        (random(3, 5),),
    ),
    "convolution": (
        f"""
def main(x: R.Tensor((1, 3, 6, 6), "float32")):
    y = R.nn.conv2d(x, {constant(4, 3, 3, 3)}, padding=1)
    z = R.nn.batch_norm(y, {constant(4)}, {constant(4)}, {constant(4)},
                        R.const([1.0, 2.0, 0.5, 4.0], "float32"))
    p = R.nn.max_pool2d(R.relu(z), pool_size=2, strides=2)
    return R.permute_dims(p, axes=(0, 2, 3, 1))
""",
        (random(1, 3, 6, 6),),
    ),
    "attention": (
        """
def main(q: R.Tensor((1, 2, "n", 4), "float32"), k: R.Tensor((1, 2, "m", 4), "float32")):
    n = T.int64()
    m = T.int64()
    y = R.attention(R.multiply(q, q), k, k)
    return R.slice(R.reshape(y, R.shape([2, n, 4])), axis=1, begin=-1)
""",
        (random(1, 2, 3, 4), random(1, 2, 5, 4)),
    ),
    "movement": (
        """
def main(x: R.Tensor((4, "n"), "float32")):
    n = T.int64()
    a = R.concat((R.exp(x), R.slice(x, axis=0, begin=1)), axis=0)
    b = R.permute_dims(a)
    return (R.relu(b), R.negative(b), R.exp(x))
""",
        (random(4, 3),),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_pass_keeps_what_a_model_computes(name: str) -> None:
    text, arguments = MODELS[name]
    module = bw.import_model(bw.from_source("@R.function" + text))
    compared = ComparePasses(*arguments)
    context = PassContext(bw.Target("x86-64-v3", num_threads=2), {}, [compared])
    last = PIPELINE.until("fold_packing")(module, context)
    assert isinstance(last["main"], ir.GraphFunction)
    assert context.runs[-1].name == "fold_packing"


@bw.graph_pass
def wrong_operator(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Compute tanh instead of exp."""
    return map_calls(module, {"exp"}, lambda _, name, call: call.replace(op=ir.OpRef("tanh")))


@bw.function_pass
def fewer_results(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Return the first result."""
    first = function.body.body.fields[0]
    return function.replace(body=function.body.replace(body=first), ret_info=first.info)


@bw.function_pass
def other_order(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
    """Return the results in the other order."""
    result = function.body.body
    swapped = ir.TupleExpr(result.fields[::-1], info=ir.TupleInfo(result.info.fields[::-1]))
    body = function.body.replace(body=swapped)
    return function.replace(body=body, ret_info=swapped.info)


@pytest.mark.parametrize(
    ("wrong", "how"),
    [
        (wrong_operator, "a different value 0"),
        (fewer_results, "returns 1 values, not 2"),
        (other_order, r"returns float32\[\], not float32\[4\] as value 0"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_pass_that_changes_the_results(wrong: Any, how: str) -> None:
    function = bw.from_source("""
@R.function
def main(x: R.Tensor((4,), "float32")):
    a = R.exp(x)
    b = R.sum(a, axes=(0,))
    return (a, b)
""")
    pipeline = PIPELINE.after("normalize", wrong).until(wrong.__name__)
    context = PassContext(bw.Target("native"), {}, [ComparePasses(random(4))])
    with pytest.raises(bw.BuildError, match=how) as caught:
        pipeline(bw.import_model(function), context)
    assert caught.value.code == "BW648"
    assert wrong.__name__ in caught.value.message
