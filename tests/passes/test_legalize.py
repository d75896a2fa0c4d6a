"""Operator calls become calls of tensor programs."""

from __future__ import annotations

import numpy as np

import blockwright as bw

ONE_PART = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((4, 3), "float32")):
        parts = R.split(x, indices_or_sections=[], axis=0)
        y = parts[0]
        return (y, parts)
"""


def test_a_tuple_of_one_result_stays_a_tuple() -> None:
    x = np.arange(12, dtype="float32").reshape(4, 3)
    module = bw.from_source(ONE_PART)
    lowered = bw.default_pipeline("x86-64-v3").until("legalize")(module, "x86-64-v3")
    for run in (bw.compile(module), lambda a: bw.interpret(lowered, a)):
        y, parts = run(x)
        np.testing.assert_array_equal(y, x)
        assert isinstance(parts, tuple)
        np.testing.assert_array_equal(parts[0], x)
