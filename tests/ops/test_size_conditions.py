"""What operators require of symbolic sizes is proved, refused, or checked by each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

CASES: dict[str, tuple[str, dict[int, list[Any]], list[int]]] = {
    "reflect": (
        'R.pad(x, pad_width=((3, 2),), pad_mode="reflect")',
        {4: [3, 2, 1, 0, 1, 2, 3, 2, 1]},
        [0, 2, 3],
    ),
    "replicate": (
        'R.pad(x, pad_width=((2, 1),), pad_mode="replicate")',
        {1: [0, 0, 0, 0], 2: [0, 0, 0, 1, 1]},
        [0],
    ),
    "circular": (
        'R.pad(x, pad_width=((3, 0),), pad_mode="circular")',
        {1: [0, 0, 0, 0], 2: [1, 0, 1, 0, 1]},
        [0],
    ),
    "rows": ("R.reshape(x, (-1, 2))", {0: [], 4: [[0, 1], [2, 3]]}, [3, 7]),
    "columns": ("R.reshape(x, (2, -1))", {4: [[0, 1], [2, 3]]}, [5]),
    "last": (
        "R.strided_slice(x, axes=[0], begin=[n - 3], end=[n])",
        {3: [0, 1, 2], 5: [2, 3, 4]},
        [0, 2],
    ),
    "all but the last": (
        "R.strided_slice(x, axes=[0], begin=[0], end=[n - 3])",
        {3: [], 5: [0, 1]},
        [2],
    ),
    "from the end": (
        "R.strided_slice(x, axes=[0], begin=[-n], end=[-1])",
        {0: [], 1: [], 3: [0, 1]},
        [],
    ),
    "gather": (
        "R.gather_elements(R.reshape(x, (n, 1)), R.zeros((2, 3), 'int64'), axis=1)",
        {2: [[0, 0, 0], [1, 1, 1]], 3: [[0, 0, 0], [1, 1, 1]]},
        [0, 1],
    ),
    "topk": (
        "R.topk(R.reshape(x, (1, n)), k=2, axis=1, ret_type='values')",
        {2: [[1, 0]], 4: [[3, 2]]},
        [0, 1],
    ),
    "topk of no lines": (
        "R.topk(R.zeros((0, n)), k=2, axis=1, ret_type='values')",
        {2: []},
        [0, 1],
    ),
    "conv": (
        "R.nn.conv1d(R.reshape(x, (1, 1, n)), R.ones((1, 1, 4)), strides=3)",
        {4: [6], 7: [6, 18]},
        [0, 1, 3],
    ),
    "max pool": (
        "R.nn.max_pool1d(R.reshape(x, (1, 1, n)), pool_size=3, strides=2)",
        {3: [2], 6: [2, 4]},
        [0, 1, 2],
    ),
    "padded pool": (
        "R.nn.avg_pool1d(R.reshape(x, (1, 1, n)), pool_size=4, strides=4, padding=1)",
        {2: [0.5], 3: [1.0]},
        [0, 1],
    ),
    "pool that may hang over": (
        "R.nn.max_pool1d(R.reshape(x, (1, 1, n)), pool_size=4, strides=2, ceil_mode=True)",
        {3: [2], 4: [3], 5: [3, 4]},
        [0, 1, 2],
    ),
}


@pytest.fixture(scope="module")
def module() -> Any:
    functions = "".join(
        f"""
    @R.function
    def f{k}(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return {body}
"""
        for k, (body, _, _) in enumerate(CASES.values())
    )
    return bw.from_source(f"@I.ir_module\nclass Module:{functions}")


@pytest.fixture(scope="module")
def compiled(module: Any) -> Any:
    return bw.compile(module)


@pytest.mark.parametrize("name", CASES)
def test_conditions_on_sizes(module: Any, compiled: Any, name: str) -> None:
    """The interpreter deduces operators with numbers: sizes that never fit are BW401."""
    entry = f"f{list(CASES).index(name)}"
    _, good, bad = CASES[name]
    for size, wanted in good.items():
        x = np.arange(size, dtype="float32")
        for found in (compiled[entry](x), bw.interpret(module, x, entry=entry)):
            np.testing.assert_array_equal(found.ravel(), np.ravel(wanted))
    for size in bad:
        x = np.arange(size, dtype="float32")
        with pytest.raises(bw.ArgumentError, match="BW708"):
            compiled[entry](x)
        with pytest.raises(bw.BlockwrightError, match=r"BW708|BW401"):
            bw.interpret(module, x, entry=entry)


def test_conditions_that_no_size_fulfils_are_refused() -> None:
    module = bw.from_source("""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32")):
        n = T.int64()
        return R.pad(x, pad_width=((n + 1, 0),), pad_mode="reflect")
""")
    with pytest.raises(bw.GraphError, match="too wide") as caught:
        bw.compile(module)
    assert caught.value.code == "BW401"


def test_arange_by_a_size_needs_a_positive_one() -> None:
    def module(least: int) -> str:
        return f"""
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), y: R.Tensor(("m",), "float32")):
        n = T.int64()
        m = T.int64()
        R.func_attr({{"tir_var_lower_bound": {{"m": {least}}}}})
        return R.arange(1, n, m, "int64")
"""

    compiled = bw.compile(bw.from_source(module(1)))
    for n, m in ((0, 1), (1, 4), (7, 3), (8, 3), (5, 9)):
        found = compiled(np.zeros(n, "f4"), np.zeros(m, "f4"))
        np.testing.assert_array_equal(found, np.arange(1, n, m))
    with pytest.raises(bw.GraphError, match="m may be 0"):
        bw.compile(bw.from_source(module(0)))
