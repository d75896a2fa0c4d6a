"""Programs for the validator, and the violations that it finds."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir

GPU = "cuda-sm_90a"

KERNEL = """
for bx in T.thread_binding({blocks}, thread="blockIdx.x"):
    for tx in T.thread_binding({threads}, thread="threadIdx.x"):
        with T.block("C"):
            vi = T.axis.spatial({blocks}, bx)
            vj = T.axis.spatial({threads}, tx)
            C[vi, vj] = A[0, 0]
    for tx in T.thread_binding({others}, thread="threadIdx.x"):
        with T.block("B"):
            vi = T.axis.spatial({blocks}, bx)
            vj = T.axis.spatial({others}, tx)
            B[0, 0] = C[vi, vj]
"""


def program(body: str, n: int = 32, allocate: str = "pass") -> ir.PrimFunc:
    """A function of two n × n matrices A and B with the given statements."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer(({n}, {n}), "float32"), B: T.Buffer(({n}, {n}), "float32")):
    {allocate}
{lines}
""")


def problems(func: ir.PrimFunc, target: str | None = None) -> list[tuple[str, str]]:
    """(code, message) of every violation; none for a valid program."""
    try:
        bw.validate(func, target)
    except bw.ValidationError as error:
        return [(d.code, d.message) for d in error.diagnostics]
    return []


def codes(func: ir.PrimFunc, target: str | None = None) -> list[str]:
    """The code of every violation, in order."""
    return [code for code, _ in problems(func, target)]


def message(func: ir.PrimFunc) -> str:
    """The text of the error for an invalid program."""
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(func)
    return str(caught.value)
