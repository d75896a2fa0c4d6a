"""Programs that are nested more deeply than Python's frames allow compile like others."""

from __future__ import annotations

import numpy as np

import blockwright as bw


def test_a_kernel_with_many_nested_allocations_is_described() -> None:
    count = 1000
    lines = "".join(
        f'        B{k} = T.allocate((1,), "float32")\n        B{k}[0] = X[0] + T.float32({k})\n'
        for k in range(count)
    )
    model = bw.compile(
        bw.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def last(X: T.Buffer((1,), "float32"), Y: T.Buffer((1,), "float32")):
{lines}        Y[0] = B{count - 1}[0]

    @R.function
    def main(x: R.Tensor((1,), "float32")):
        return R.call_tir(cls.last, (x,), out_sinfo=R.Tensor((1,), "float32"))
""")
    )
    assert model(np.ones(1, "float32")) == count
    assert model.memory_plan.activation_bytes() >= 4
