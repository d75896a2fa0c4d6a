"""Memory on the chip is fresh at each launch of the kernel that uses it."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.verify import verify
from tests.verify.pairs import program

ARGUMENTS = "A[4, 16]; C[4, 16]"
PLAIN = """
for k, t in T.grid(4, 16):
    with T.block("C"):
        vk, vt = T.axis.remap("SS", [k, t])
        C[vk, vt] = A[vk, vt] + A[T.max(vk - 1, 0), vt]
"""
KEPT = """
S = T.alloc_buffer((4, 16), "float32", scope="{scope}")
{outer}
    {inner}
        with T.block("S"):
            vk, vt = T.axis.remap("SS", [k, t])
            S[vk, vt] = A[vk, vt]
        with T.block("C"):
            vk, vt = T.axis.remap("SS", [k, t])
            C[vk, vt] = S[vk, vt] + S[T.max(vk - 1, 0), vt]
"""
PIECES = """
S = T.alloc_buffer((4, 16), "float32", scope="{scope}")
for once in range(1):
    for k in range(4):
        for t in T.thread_binding(16, thread="threadIdx.x"):
            with T.block("S"):
                vk, vt = T.axis.remap("SS", [k, t])
                S[vk, vt] = A[vk, vt]
    for t in T.thread_binding(16, thread="threadIdx.x"):
        for k in range(4):
            with T.block("C"):
                vk, vt = T.axis.remap("SS", [k, t])
                C[vk, vt] = S[vk, vt] + S[T.max(vk - 1, 0), vt]
"""
SERIAL = "for k in range(4):"
THREADS = 'for t in T.thread_binding(16, thread="threadIdx.x"):'


def kept(scope: str, outer: str, inner: str) -> ir.PrimFunc:
    return program(ARGUMENTS, KEPT.format(scope=scope, outer=outer, inner=inner))


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_what_one_launch_leaves_the_next_one_does_not_find(scope: str) -> None:
    plain = program(ARGUMENTS, PLAIN)
    assert verify(plain, kept(scope, THREADS, SERIAL)).verdict == "proved"
    found = verify(plain, kept(scope, SERIAL, THREADS))
    assert found.verdict == "refuted"
    assert "written" in found.why


def test_global_memory_stays() -> None:
    plain = program(ARGUMENTS, PLAIN)
    assert verify(plain, kept("global", SERIAL, THREADS)).verdict == "proved"


@pytest.mark.parametrize("scope", ["local", "shared"])
def test_a_kernel_of_several_nests_keeps_what_it_fills_in_pieces(scope: str) -> None:
    plain = program(ARGUMENTS, PLAIN)
    assert verify(plain, program(ARGUMENTS, PIECES.format(scope=scope))).verdict == "proved"


OUTSIDE = """
S = T.alloc_buffer((4, 16), "float32", scope="local")
for k in range(4):
    for t in T.thread_binding(16, thread="threadIdx.x"):
        with T.block("S"):
            vk, vt = T.axis.remap("SS", [k, t])
            S[vk, vt] = A[vk, vt]
for k, t in T.grid(4, 16):
    with T.block("C"):
        vk, vt = T.axis.remap("SS", [k, t])
        C[vk, vt] = S[vk, vt] + S[T.max(vk - 1, 0), vt]
"""


def test_memory_of_a_kernel_is_not_used_outside_of_it() -> None:
    found = verify(program(ARGUMENTS, PLAIN), program(ARGUMENTS, OUTSIDE))
    assert found.verdict == "unknown"
    assert "outside of its kernel" in found.why
