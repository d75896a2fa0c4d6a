"""Attributes of functions hold values of the kind that they take, wherever they come from."""

from __future__ import annotations

from typing import Any

import pytest

import blockwright as bw
from blockwright import ir

WRONG: list[tuple[str, Any]] = [
    *(("tir_var_upper_bound", v) for v in (5, "x", [1], None, {"n": "x"}, {"n": None}, {"n": 2.5},
                                           {"n": True}, {3: 3}, {"n": 2**70})),
    *(("tir_var_lower_bound", v) for v in ("x", {"n": [1]}, {"n": -(2**64)})),
    *(("num_outputs", v) for v in (None, {}, [1], "x", 1.5, -1, True)),
    *(("tir.fp_contract", v) for v in ("x", None, True, 1)),
]  # fmt: skip
PROGRAM = """
@T.prim_func
def f(x: T.handle, y: T.handle):
    T.func_attr({attrs})
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (n,), "float32")
    for i in range(n):
        with T.block("Y"):
            vi = T.axis.spatial(n, i)
            Y[vi] = X[vi]
"""
GRAPH = """
@R.function
def main(x: R.Tensor(("n",), "float32")):
    R.func_attr({attrs})
    return R.add(x, x)
"""
CALLS = """
@I.ir_module
class M:
    @T.prim_func(private=True)
    def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("Y"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[vi]

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        return R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((4,), "float32"))
"""


def refused(value: Any) -> str:
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(value)
    assert caught.value.help
    return caught.value.code


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_values_of_another_kind_are_refused(key: str, value: Any) -> None:
    code = "BW620" if key == "tir.fp_contract" else "BW252"
    for text in (PROGRAM, GRAPH):
        with pytest.raises(bw.ScriptError) as caught:
            bw.from_source(text.format(attrs={key: value}))
        assert caught.value.code == "BW107"
        assert caught.value.diagnostics[0].span is not None
        function: Any = bw.from_source(text.format(attrs={}))
        assert refused(function.replace(attrs={**function.attrs, key: value})) == code
    module = bw.from_source(CALLS)
    callee: ir.PrimFunc = module["f"]
    callee = callee.replace(attrs={**callee.attrs, key: value})
    for entry in (bw.validate, bw.compile):
        with pytest.raises(bw.BlockwrightError) as found:
            entry(module.with_function("f", callee))
        assert found.value.code == code


def test_bounds_are_of_symbols_of_the_function() -> None:
    for text in (PROGRAM, GRAPH):
        for key in ("tir_var_upper_bound", "tir_var_lower_bound"):
            built = bw.from_source(text.format(attrs={key: {"m": 3}}))
            assert refused(built) == "BW252"
            if text is GRAPH:
                with pytest.raises(bw.ValidationError) as caught:
                    bw.compile(built)
                assert caught.value.code == "BW252"
            bw.validate(bw.from_source(text.format(attrs={key: {"n": 3}})))


def test_a_declared_range_has_values() -> None:
    attrs = {"tir_var_lower_bound": {"n": 5}, "tir_var_upper_bound": {"n": 3}}
    with pytest.raises(bw.ScriptError, match="at least 5 and at most 3"):
        bw.from_source(GRAPH.format(attrs=attrs))


def test_constants_of_the_dialect_are_numbers() -> None:
    text = PROGRAM.format(attrs='{"tir_var_upper_bound": {"n": T.int64(8)}}')
    assert bw.from_source(text).attrs["tir_var_upper_bound"] == {"n": 8}


@pytest.mark.parametrize("attrs", [
    {"input_orders": 5}, {"input_orders": {"x": 5}}, {"input_orders": {"x": (0, 0)}},
    {"input_pairs": 5}, {"input_pairs": ("x",)}, {"output_pairs": (7,)}, {"output_pairs": "y"},
    {"input_orders": {"x": (0, 1)}}, {"output_orders": 5}, {"output_orders": ((), ())},
    {"inputs_tree": 5}, {"outputs_tree": "x"}, {"outputs_tree": {"tuple": [0, 1]}},
    {"framework": 5}, {"constants": 5}, {"constants": {"w": 3}},
])  # fmt: skip
def test_attributes_of_a_module_fit_its_function(attrs: dict[str, Any]) -> None:
    module = bw.from_source(CALLS)
    with pytest.raises(bw.ValidationError) as caught:
        bw.compile(module.replace(attrs=attrs))
    assert caught.value.code == "BW252"
