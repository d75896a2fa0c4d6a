"""Forms that published tensor programs are printed in: each parses, round-trips, and means the
same to the interpreter, to native code and to a schedule."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir import PrimFunc, assert_structural_equal
from blockwright.script.ir import from_source
from blockwright.support import ScriptError

VECTORS = 'A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")'


def program(body: str, params: str = VECTORS) -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    func = from_source(f"@T.prim_func\ndef main({params}):\n{lines}\n")
    assert isinstance(func, PrimFunc)
    assert_structural_equal(from_source(func.script()), func)
    bw.validate(func)
    return func


def run(func: PrimFunc, *arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays afterwards, which the interpreter and native code agree on."""
    slow, fast = [a.copy() for a in arrays], list(arrays)
    bw.interpret(func, *slow)
    bw.build(func)["main"](*fast)
    for a, b in zip(slow, fast, strict=True):
        np.testing.assert_array_equal(a, b)
    return fast


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


# ---------------------------------------------------------------------------- strides named by text
def test_strides_are_named_by_strings() -> None:
    func = program(
        """
n = T.int32()
A = T.match_buffer(a, (n, 4), strides=("s0", "s1"), buffer_type="default")
C = T.match_buffer(c, (n, 4), strides=["s0", 1])
for i in range(n):
    with T.block("C"):
        vi = T.axis.spatial(n, i)
        T.reads(A[vi, 0:4])
        T.writes(C[vi, 0:4])
        D = T.match_buffer(A[vi, 0:4], (4,), strides=("s0",), offset_factor=1)
        for j in range(4):
            C[vi, j] = D[j] + 1.0
""",
        "a: T.handle, c: T.handle",
    )
    source = ramp(3, 24)[:, ::6]
    _, c = run(func, source, np.zeros((3, 8), "float32")[:, :4])
    np.testing.assert_array_equal(c, source + 1)
    a, b = func.buffers
    assert a.strides[0] is not b.strides[0]  # "s0" of another buffer is another stride


def test_new_memory_has_no_stride_to_name() -> None:
    with pytest.raises(ScriptError, match="'s0' names no size"):
        program('C = T.alloc_buffer((4,), strides=("s0",))')


# ------------------------------------------------------------------------------- calls and types
def test_calls_without_a_result() -> None:
    func = program("""
T.ptx_commit_group(dtype="")
T.ptx_wait_group(0, dtype="")
T.tvm_storage_sync("shared", dtype="")
T.call_extern("f", A.data, dtype="")
T.call_extern("void", "f", A.data)
T.call_packed("f", A.data, dtype="void")
T.call_intrin("void", "tir.tvm_storage_sync", "shared")
""")
    plain = program("""
T.ptx_commit_group()
T.ptx_wait_group(0)
T.tvm_storage_sync("shared")
T.call_extern("f", A.data)
T.call_extern("f", A.data)
T.call_packed("f", A.data)
T.tvm_storage_sync("shared")
""")
    assert_structural_equal(func, plain)


@pytest.mark.parametrize(
    ("name", "known"), [("e4m3_float8", "float8_e4m3fn"), ("e5m2_float8x4", "float8_e5m2x4")]
)
def test_older_names_of_eight_bit_floats(name: str, known: str) -> None:
    assert ir.dtype_of(name) is ir.dtype_of(known)
    program(f'C = T.alloc_buffer((4,), "{name}")\nC[0] = T.{name}(0)')
