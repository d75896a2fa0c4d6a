"""Programs of one module that are compiled for different targets."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright.support import BuildError
from blockwright.target.host import host_arch

pytestmark = pytest.mark.skipif(host_arch() != "x86_64", reason="levels of x86-64")

WIDE = pytest.mark.skipif(not bw.Target("x86-64-v4").is_host, reason="needs AVX-512")
BODY = """
    @T.prim_func
    def {name}(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        T.func_attr({{"target": "{target}"}})
        for i in T.vectorized(64):
            with T.block("B"):
                v = T.axis.spatial(64, i)
                B[v] = A[v] * T.float32(2)
"""


def module(**targets: str) -> bw.ir.IRModule:
    bodies = (BODY.format(name=name, target=target) for name, target in targets.items())
    return bw.from_source("@I.ir_module\nclass Module:\n" + "".join(bodies))


@WIDE
def test_each_program_uses_the_registers_of_its_target() -> None:
    built = bw.build(module(narrow="x86-64-v2", middle="x86-64-v3", wide="x86-64-v4"), "x86-64-v2")
    widths = {"narrow": "xmm", "middle": "ymm", "wide": "zmm"}
    for name in widths:
        text = built.source("asm", name)
        assert {r for r in ("xmm", "ymm", "zmm") if f"%{r}" in text} == {widths[name]}
        a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        built[name](a, b)
        np.testing.assert_array_equal(b, 2 * a)


def test_names_that_say_no_more_than_cpu() -> None:
    texts = [
        bw.build(module(f=target), "x86-64-v2").source("asm", "f")
        for target in ("llvm", "c", "x86-64-v2", "x86_64-linux-gnu", "")
    ]
    assert len(set(texts)) == 1


@pytest.mark.parametrize("target", ["aarch64", "cuda-sm_90", "cuda", "riscv"])
def test_targets_of_other_architectures(target: str) -> None:
    with pytest.raises(BuildError, match=f"is {target}, and it is built for x86-64-v2") as caught:
        bw.build(module(f=target), "x86-64-v2")
    assert caught.value.code == "BW602"


def test_all_targets_have_to_run_here() -> None:
    foreign = [
        t
        for t in ("x86-64-v4", "x86-64-v4+avx512fp16", "x86-64+amx-fp16")
        if bw.Target(t).missing_here
    ]
    if not foreign:
        pytest.skip("the processor has all features")
    built = bw.build(module(f="x86-64-v2", g=foreign[0]), "x86-64-v2")
    with pytest.raises(BuildError, match="which lacks") as caught:
        built["f"]
    assert caught.value.code == "BW604"
