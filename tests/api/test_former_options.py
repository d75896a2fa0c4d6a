"""Options, strategies and operator attributes under the names that they had earlier."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright.api.compile import with_current_names
from blockwright.graph import GraphBuilder
from blockwright.script import relax as R
from blockwright.strategies import STRATEGIES
from blockwright.support.former_names import FORMER_STRATEGIES


def test_former_options_and_strategies_become_current_ones() -> None:
    given = {"disabled_rules": ["rows", "gemm"], "winograd": False}
    expected = {"disabled_strategies": ["inner_reduction", "gemm"], "winograd": False}
    assert with_current_names(given) == expected
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


@pytest.mark.parametrize("name", ["keys_at_once", "kv_block"])
def test_an_operator_attribute_is_accepted_by_either_name(name: str) -> None:
    @R.function
    def main(x: R.Tensor((1, 2, 8, 4), "float32")):
        return R.attention(x, x, x, **{name: 4})

    builder = GraphBuilder()
    x = builder.param("x", main.params[0].info)
    built = builder.finish("main", builder.op("attention", x, x, x, **{name: 4}))
    assert "kv_block=4" in main.script()
    assert "kv_block=4" in built.script()
