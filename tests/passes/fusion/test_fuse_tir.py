"""Programs that are still needed stay when fusion and folding drop others."""

import numpy as np
import pytest

import blockwright as bw

CALLS_A_PROGRAM = """
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def inner(X: T.Buffer((3,), "float32"), O: T.Buffer((3,), "float32")):
        for i in range(3):
            O[i] = X[i] * T.float32(2)

    @T.prim_func
    def top(X: T.Buffer((3,), "float32"), O: T.Buffer((3,), "float32")):
        with T.block("call"):
            T.reads(X[0:3])
            T.writes(O[0:3])
            Module.inner(X.data, O.data)

    @R.function
    def main(x: R.Tensor((3,), "float32")):
        a = R.call_tir(cls.top, (ARGUMENT,), out_sinfo=R.Tensor((3,), "float32"))
        return R.exp(RESULT)
"""


@pytest.mark.parametrize(
    ("argument", "result", "expected"),
    [
        ("x", "a", [1, 0, 4]),
        ('R.const([1.0, 2.0, 3.0], "float32")', "a", [2, 4, 6]),  # folded: no call of it is left
        ("x", "x", [0.5, 0, 2]),  # unused: the call is dropped
    ],
)
def test_a_public_program_keeps_the_private_programs_that_it_calls(
    argument: str, result: str, expected: list[float]
) -> None:
    source = CALLS_A_PROGRAM.replace("ARGUMENT", argument).replace("RESULT", result)
    exe = bw.compile(bw.from_source(source))
    x = np.array([0.5, 0, 2], "float32")
    np.testing.assert_allclose(exe["main"](x), np.exp(np.float32(expected)), rtol=1e-6)
