"""Options, strategies and operator attributes under the names that they had earlier."""

from __future__ import annotations

from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.api.compile import with_current_names
from blockwright.graph import GraphBuilder
from blockwright.script import relax as R
from blockwright.strategies import STRATEGIES
from blockwright.support.former_names import FORMER_STRATEGIES


def test_former_options_and_strategies_become_current_ones() -> None:
    given = {"disabled_rules": ["rows", "gemm"], "winograd": False}
    expected = {
        "disabled_strategies": ["inner_reduction", "gemm"],
        "disabled_implementations": ["winograd"],
    }
    assert with_current_names(given) == expected
    assert with_current_names({"winograd": True}) == {}
    given = {"winograd": False, "disabled_implementations": ["split_kv"]}
    assert with_current_names(given) == {"disabled_implementations": ["split_kv", "winograd"]}
    assert set(FORMER_STRATEGIES.values()) <= {each.name for each in STRATEGIES}


@pytest.mark.parametrize("name", ["rows", "inner_reduction"])
@pytest.mark.parametrize("option", ["disabled_rules", "disabled_strategies"])
def test_a_strategy_is_disabled_by_either_name(option: str, name: str) -> None:
    @R.function
    def main(x: R.Tensor((4, 64), "float32")):
        return R.softmax(x, axis=-1)

    usual = bw.compile(main)
    other = bw.compile(main, options={option: [name]})
    assert usual.show("schedule") != other.show("schedule")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"winograd": "no"}, "unknown option 'winograd'"),
        ({"disabled_implementations": "winograd"}, "must be a list of names"),
        ({"disabled_implementations": 3, "winograd": False}, "must be a list of names"),
        ({"disabled_implementations": ["winogard"]}, "did you mean 'winograd'"),
    ],
)
def test_implementations_to_disable_are_names_that_exist(options: dict[str, Any], why: str) -> None:
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return R.exp(x)

    with pytest.raises(bw.OptionError, match=why) as caught:
        bw.compile(main, options=options)
    assert caught.value.code == "BW928"


@pytest.mark.parametrize(
    ("operator", "former", "current"),
    [
        ("attention", {"keys_at_once": 4}, "split_kv(block=4)"),
        ("attention", {"kv_block": 4}, "split_kv(block=4)"),
        ("attention", {"kv_block": None}, "default"),
        ("nn.conv2d", {"winograd": 2}, "winograd(tile=2)"),
        ("nn.conv2d", {"winograd": 0}, "default"),
    ],
)
def test_a_former_attribute_is_refused_with_its_replacement(
    operator: str, former: dict[str, Any], current: str
) -> None:
    builder = GraphBuilder()
    shape = tuple(ir.const(n, "int64") for n in (1, 2, 8, 4))
    x = builder.param("x", ir.TensorInfo(shape, ir.dtype_of("float32")))
    with pytest.raises(bw.GraphError) as caught:
        builder.op(operator, *[x] * (3 if operator == "attention" else 2), **former)
    assert caught.value.code == "BW401"
    assert caught.value.help == f'write implementation="{current}"'
