"""Block signatures: inferred when they are not written, checked when they are."""

from __future__ import annotations

import pytest

from blockwright import ir, validate
from blockwright.script import ir as I
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import ScriptError


def signature(func: ir.PrimFunc, name: str) -> tuple[list[str], list[str]]:
    (block,) = [b for b in ir.blocks(func) if b.name == name]
    return [repr(r) for r in block.reads], [repr(r) for r in block.writes]


def test_a_signature_that_is_not_written_is_inferred() -> None:
    @T.prim_func
    def blur(A: T.Buffer((18, 16), "float32"), B: T.Buffer((16, 16), "float32")):
        for i, j in T.grid(16, 4):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                vj = T.axis.spatial(4, j)
                for r, c in T.grid(3, 4):
                    B[vi, vj * 4 + c] += A[vi + r, vj * 4 + c]

    reads, writes = signature(blur, "B")
    assert reads == ["B[vi, vj * 4:vj * 4 + 4]", "A[vi:vi + 3, vj * 4:vj * 4 + 4]"]
    assert writes == ["B[vi, vj * 4:vj * 4 + 4]"]


def test_half_a_signature_is_completed() -> None:
    @T.prim_func
    def copy(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            with T.block("B"):
                vi = T.axis.spatial(16, i)
                T.reads(A[0:16])
                B[vi] = A[vi]

    assert signature(copy, "B") == (["A[0:16]"], ["B[vi]"])


def test_a_reduction_with_an_initial_value_does_not_read_its_result() -> None:
    @T.prim_func
    def total(A: T.Buffer((16,), "float32"), B: T.Buffer((1,), "float32")):
        for k in range(16):
            with T.block("B"):
                vk = T.axis.reduce(16, k)
                with T.init():
                    B[0] = T.float32(0)
                B[0] += A[vk]

    assert signature(total, "B") == (["A[vk]"], ["B[0]"])


def test_a_signature_that_leaves_something_out_is_refused_at_its_block() -> None:
    with pytest.raises(ScriptError) as caught:

        @T.prim_func
        def main(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
            for i in range(15):
                with T.block("B"):
                    vi = T.axis.spatial(15, i)
                    T.reads(A[vi])
                    T.writes(B[vi])
                    B[vi] = A[vi] + A[vi + 1]

    (problem,) = caught.value.diagnostics
    assert problem.code == "BW216"
    text = str(caught.value)
    assert 'with T.block("B"):' in text
    assert "^^^" in text


def test_what_a_block_takes_from_outside_is_refused_too() -> None:
    with pytest.raises(ScriptError, match="bind it to an iterator of the block"):

        @T.prim_func
        def main(A: T.Buffer((16, 4), "float32")):
            for i, j in T.grid(16, 4):
                with T.block("A"):
                    vi = T.axis.spatial(16, i)
                    A[vi, j] = T.float32(0)


def test_modules_are_checked_and_the_check_can_be_left_out() -> None:
    with pytest.raises(ScriptError, match="BW216"):

        @I.ir_module
        class Module:
            @T.prim_func
            def main(A: T.Buffer((16,), "float32")):
                with T.block("A"):
                    T.writes(A[0:4])
                    A[5] = T.float32(0)

    @T.prim_func(check_well_formed=False)
    def main(A: T.Buffer((16,), "float32")):
        with T.block("A"):
            T.writes(A[0:4])
            A[5] = T.float32(0)

    ir.assert_structural_equal(from_source(repr(main)), main)  # text is read back as it is


def test_regions_of_one_buffer_are_joined() -> None:
    """A written signature may list a buffer several times; the block has one box of it."""

    @T.prim_func
    def swap(A: T.Buffer((8,), "float32"), B: T.Buffer((8, 2), "float32")):
        for i in range(7):
            with T.block("swap"):
                vi = T.axis.opaque(7, i)
                T.reads(A[vi], A[vi + 1])
                T.writes(A[vi + 1], A[vi], B[vi, 0], B[vi, 1])
                if A[vi] > A[vi + 1]:
                    x: T.float32 = A[vi]
                    A[vi] = A[vi + 1]
                    A[vi + 1] = x
                B[vi, 0] = A[vi]
                B[vi, 1] = A[vi + 1]

    reads, writes = signature(swap, "swap")
    assert reads == ["A[vi:vi + 2]"]
    assert writes == ["A[vi:vi + 2]", "B[vi, 0:2]"]
    validate(swap)
    ir.assert_structural_equal(from_source(swap.script()), swap)
