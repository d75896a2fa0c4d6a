"""What an imported program says of itself is not believed; what it asks of arithmetic is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir

X = np.arange(4, dtype="float32")


def module(
    attrs: str,
    store: str = "X[vi] + T.float32(1)",
    call: str = "R.negative(y)",
    result: str = "(4,)",
) -> ir.IRModule:
    return bw.from_source(f"""
@I.ir_module
class M:
    @T.prim_func(private=True)
    def f(X: T.Buffer((4,), "float32"), Y: T.Buffer({result}, "float32")):
        T.func_attr({attrs})
        for i in range({result[1:-2]}):
            with T.block("Y"):
                vi = T.axis.spatial({result[1:-2]}, i)
                Y[vi] = {store}

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        y = R.call_tir(cls.f, (x,), out_sinfo=R.Tensor({result}, "float32"))
        return {call}
""")


@pytest.mark.parametrize("attrs", [
    {"tir.view": True}, {"compute_pattern": "ElementWise"}, {"compute_pattern": "Opaque"},
    {"tir.is_host": True}, {"tir.entry_ticks": True}, {"primitive": True}, {"op": "a b+c"},
    {"tir.constant_params": [0, 7]}, {"tir.uncached_params": 5},
])  # fmt: skip
def test_marks_of_passes_are_dropped(attrs: dict[str, Any]) -> None:
    exe = bw.compile(module(repr(attrs)))
    np.testing.assert_array_equal(exe(X), -(X + 1))
    np.testing.assert_array_equal(bw.compile(module(repr(attrs), call="y"))(X), X + 1)


def test_a_program_called_a_view_stays_inside_of_its_argument() -> None:
    built = module('{"tir.view": True}', "X[vi % 4]", "y", "(1024,)")
    np.testing.assert_array_equal(bw.compile(built)(X), np.tile(X, 256))


def test_the_number_of_results_is_that_of_the_call() -> None:
    assert bw.compile(module('{"num_outputs": 1}')) is not None
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.compile(module('{"num_outputs": 2}'))
    assert caught.value.code == "BW403"


def test_readings_of_the_clock_need_a_place() -> None:
    func: ir.PrimFunc = module('{"tir.entry_ticks": True, "num_outputs": 1}')["f"]
    attrs = {**func.attrs, "tir.is_private": False}
    with pytest.raises(bw.BuildError) as caught:
        bw.build(func.replace(attrs=attrs))
    assert caught.value.code == "BW619"


class TestNumericFreedoms:
    SOURCE = "X[vi] * X[vi] - X[vi]"
    VALUES = np.array([1 + 2**-12, 1.1, 1.3, 3.7], dtype="float32")

    @pytest.mark.parametrize("call", ["R.negative(y)", "R.reshape(y, (2, 2))", "y"])
    def test_a_program_without_contraction_stays_so(self, call: str) -> None:
        x = self.VALUES
        found = bw.compile(module('{"tir.fp_contract": "off"}', self.SOURCE, call))(x)
        expected = x * x - x
        expected = -expected if "negative" in call else expected.reshape(found.shape)
        np.testing.assert_array_equal(found, expected)

    def test_programs_with_the_same_freedoms_are_fused(self) -> None:
        again = 'R.call_tir(cls.f, (y,), out_sinfo=R.Tensor((4,), "float32"))'
        exe = bw.compile(module('{"tir.fp_contract": "off"}', self.SOURCE, again))
        fused = [f for n, f in exe.stages["fuse_tir"].functions.items() if n != "main"]
        assert [f.attrs["tir.fp_contract"] for f in fused] == ["off"]
        y = self.VALUES * self.VALUES - self.VALUES
        np.testing.assert_array_equal(exe(self.VALUES), y * y - y)

    def test_programs_with_other_freedoms_are_not(self) -> None:
        exe = bw.compile(module('{"tir.fp_contract": "off"}', self.SOURCE))
        assert len(exe.stages["fuse_tir"].functions) == 3
