"""Miscompilations that users reported of other schedulers, rebuilt: each is refused, or right.

The programs are written anew from the descriptions in public issue threads; the numbers of those
threads (apache/tvm) stand in the docstrings.
"""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing import assert_same_meaning


def function(text: str) -> ir.PrimFunc:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return found


def at(sch: Schedule, block: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(block))[position]


def block(sch: Schedule, name: str) -> BlockRV:
    return sch.get_block(name)


def refused(words: str, code: str) -> pytest.RaisesExc[ScheduleError]:
    """The step inside must be refused with these words, and leave the program alone."""
    return pytest.raises(ScheduleError, match=words, check=lambda e: e.code == code)


CHAIN = """
@T.prim_func
def main(a: T.handle, b: T.handle, e: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    E = T.match_buffer(e, (n,), "float32")
    C = T.alloc_buffer((n,), "float32")
    D = T.alloc_buffer((n,), "float32")
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = A[vi] + B[vi]
    for i in range(n):
        with T.block("D"):
            vi = T.axis.spatial(n, i)
            D[vi] = C[vi] + C[vi]
    for i in range(n):
        with T.block("E"):
            vi = T.axis.spatial(n, i)
            E[vi] = D[vi] + A[vi]
"""


class TestConsumerPastAPartialProducer:
    """#15911: `reverse_compute_at` into a loop split imperfectly left part of the result unset."""

    def test_every_element_of_a_ragged_split_is_computed(self) -> None:
        sch = Schedule(function(CHAIN), verify="full")
        outer, _ = sch.split(at(sch, "D", 0), [None, 32])
        sch.reverse_compute_at(block(sch, "E"), outer)
        sch.compute_at(block(sch, "C"), outer)
        for n in (1, 31, 32, 33, 70):
            assert_same_meaning(function(CHAIN), sch.func, sizes={"n": n})

    def test_a_producer_that_makes_only_part_takes_no_consumer_along(self) -> None:
        """Instances of the consumer that read what the loop does not make would be lost."""
        func = function("""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), E: T.Buffer((64,), "float32")):
    D = T.alloc_buffer((64,), "float32")
    for i in range(40):
        with T.block("low"):
            vi = T.axis.spatial(40, i)
            D[vi] = A[vi] * 2.0
    for i in range(24):
        with T.block("high"):
            vi = T.axis.spatial(24, i)
            D[vi + 40] = A[vi + 40] * 3.0
    for i in range(64):
        with T.block("E"):
            vi = T.axis.spatial(64, i)
            E[vi] = D[vi] + 1.0
""")
        sch = Schedule(func)
        with refused("some instances of block E would belong to no iteration", "BW358"):
            sch.reverse_compute_at(block(sch, "E"), at(sch, "high", 0))
        with refused("is not inside loop i", "BW322"):
            sch.reverse_compute_at(block(sch, "E"), at(sch, "low", 0))


SUM = """
@T.prim_func
def main(X: T.Buffer((16, 16, 16), "float32"), Y: T.Buffer((16, 16), "float32")):
    for i, j, k in T.grid(16, 16, 16):
        with T.block("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[vi, vk, vj]
"""


class TestCacheOfAReduction:
    """#17799: tiles in the order spatial, reduction, spatial; the copy back of a cached result was
    put below the outer reduction loop and its memory kept for one iteration only."""

    @staticmethod
    def tiled() -> tuple[Schedule, dict[str, LoopRV], BlockRV]:
        sch = Schedule(function(SUM), verify="full")
        names: tuple[str, ...] = ("i0", "i1", "j0", "j1", "k0", "k1")
        parts = [
            part for loop in sch.get_loops(block(sch, "sum")) for part in sch.split(loop, [4, 4])
        ]
        loops: dict[str, LoopRV] = dict(zip(names, parts, strict=True))
        sch.reorder(*(loops[name] for name in ("i0", "k0", "j0", "i1", "k1", "j1")))
        return sch, loops, sch.cache_write(block(sch, "sum"), 0, "local")

    def test_a_partial_sum_is_not_copied_back(self) -> None:
        sch, loops, copy = self.tiled()
        for name in ("j0", "k0", "i1"):
            with refused("has not written all of Y_local", "BW316"):
                sch.reverse_compute_at(copy, loops[name])

    def test_outside_of_the_reduction_the_copy_is_right_also_when_compiled(self) -> None:
        sch, loops, copy = self.tiled()
        sch.reverse_compute_at(copy, loops["i0"])
        assert_same_meaning(function(SUM), sch.func)
        x = np.random.default_rng(0).standard_normal((16, 16, 16)).astype("float32")
        y = np.zeros((16, 16), "float32")
        bw.build(sch.func)["main"](x, y)
        np.testing.assert_allclose(y, x.sum(axis=1), rtol=1e-5, atol=1e-5)


class TestTransposeIntoAReduction:
    """#17838: reverse inlining of a transpose into a matrix product gave a wrong program, which
    stored to swapped indices in the update but not in the initial value."""

    SOURCE = """
@T.prim_func
def main(A: T.Buffer((8, 6), "float32"), B: T.Buffer((6, 4), "float32"), Y: T.Buffer((4, 8), "float32")):
    C = T.alloc_buffer((8, 4), "float32")
    for i, j, k in T.grid(8, 4, 6):
        with T.block("matmul"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for j, i in T.grid(4, 8):
        with T.block("transpose"):
            vj, vi = T.axis.remap("SS", [j, i])
            Y[vj, vi] = C[vi, vj]
"""  # noqa: E501

    def test_a_reduction_takes_no_consumer_in(self) -> None:
        sch = Schedule(function(self.SOURCE))
        with refused("block matmul is not complete: it is a reduction", "BW314"):
            sch.reverse_compute_inline(block(sch, "transpose"))

    def test_moving_the_transpose_to_the_product_is_right(self) -> None:
        sch = Schedule(function(self.SOURCE), verify="full")
        sch.reverse_compute_at(block(sch, "transpose"), at(sch, "matmul", 1))
        assert_same_meaning(function(self.SOURCE), sch.func, exact=True)

    def test_a_transpose_goes_into_an_elementwise_producer(self) -> None:
        text = self.SOURCE[: self.SOURCE.index("    for i, j, k")] + """
    for i, j in T.grid(8, 4):
        with T.block("scale"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * B[0, vj]
""" + self.SOURCE[self.SOURCE.index("    for j, i in") :]  # fmt: skip
        sch = Schedule(function(text), verify="full")
        sch.reverse_compute_inline(block(sch, "transpose"))
        assert_same_meaning(function(text), sch.func, exact=True)


class TestPredicateAboveTheLoopsItMentions:
    """#14413: the condition that an inlined consumer needs was put where the loops that it speaks
    of were not yet open. #12717 and #13338: it was forgotten, or the producer's was."""

    SOURCE = """
@T.prim_func
def main(A: T.Buffer((128,), "float32"), Y: T.Buffer((100,), "float32")):
    B = T.alloc_buffer((128,), "float32")
    for i in range(128):
        with T.block("B"):
            vi = T.axis.spatial(128, i)
            B[vi] = A[vi] * 2.0
    for i in range(100):
        with T.block("Y"):
            vi = T.axis.spatial(100, i)
            Y[vi] = B[vi] + 1.0
"""

    def test_a_producer_of_more_gets_a_condition_over_its_own_loops(self) -> None:
        sch = Schedule(function(self.SOURCE), verify="full")
        sch.split(at(sch, "B", 0), [None, 5])
        sch.reverse_compute_inline(block(sch, "Y"))
        assert_same_meaning(function(self.SOURCE), sch.func, exact=True)
        realize = next(
            r for r in ir.walk(sch.func) if isinstance(r, ir.BlockRealize) and r.block.name == "B"
        )
        inside = {f.loop_var for f in ir.loops(sch.func)}
        assert set(ir.free_vars(realize.predicate)) <= inside

    def test_a_block_around_the_loops_takes_nothing_in(self) -> None:
        """There the condition would stand outside the loops; the block is no single store."""
        sch = Schedule(function(self.SOURCE), verify="full")
        _, inner = sch.split(at(sch, "B", 0), [None, 4])
        sch.blockize(inner)
        with refused("the body of block B_o is not a single store", "BW360"):
            sch.reverse_compute_inline(block(sch, "Y"))

    def test_a_producer_that_runs_less_takes_nothing_in(self) -> None:
        text = self.SOURCE.replace(
            "            B[vi] =", "            T.where(i < 64)\n            B[vi] ="
        )
        sch = Schedule(function(text))
        with refused("does not write everything that block Y reads", "BW358"):
            sch.reverse_compute_inline(block(sch, "Y"))


class TestSumOverAConstant:
    """#15205: a sum over elements that are all one constant; the scheduled program dropped reads,
    which hid that the sum reads more elements than there are."""

    SOURCE = """
@T.prim_func
def main(Y: T.Buffer((4,), "float32")):
    C = T.alloc_buffer((SIZE,), "float32")
    S = T.alloc_buffer((4,), "float32")
    for i in range(SIZE):
        with T.block("C"):
            vi = T.axis.spatial(SIZE, i)
            C[vi] = T.float32(-34.0282)
    for i, k in T.grid(4, 64):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + C[vk]
    for i in range(4):
        with T.block("Y"):
            vi = T.axis.spatial(4, i)
            Y[vi] = S[vi]
"""

    def test_the_sum_keeps_its_number_of_terms(self) -> None:
        """With the constant inlined nothing that is read says how far `vk` runs."""
        func = function(self.SOURCE.replace("SIZE", "64"))
        sch = Schedule(func, verify="full")
        sch.compute_inline(block(sch, "C"))
        sch.compute_at(block(sch, "S"), at(sch, "Y", 0))
        assert_same_meaning(func, sch.func, exact=True)

    def test_reading_beyond_the_constants_is_said_before_any_schedule(self) -> None:
        """Such a program is undefined; no step has to keep what it happens to compute."""
        y = np.zeros(4, "float32")
        with pytest.raises(InterpretError, match="outside"):
            bw.interpret(function(self.SOURCE.replace("SIZE", "3")), y)


class TestProducerWithTwoConsumers:
    """`compute_at` into the loop of one consumer while another still needs the result."""

    SOURCE = """
@T.prim_func
def main(A: T.Buffer((16, 16), "float32"), C: T.Buffer((16, 16), "float32"), D: T.Buffer((16, 16), "float32")):
    B = T.alloc_buffer((16, 16), "float32")
    for i, j in T.grid(16, 16):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(16, 16):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(16, 16):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, 15 - vj] - A[vi, vj]
"""  # noqa: E501

    def test_it_stays_while_a_consumer_is_outside(self) -> None:
        sch = Schedule(function(self.SOURCE))
        for consumer in ("C", "D"):
            with refused("is not inside loop i", "BW322"):
                sch.compute_at(block(sch, "B"), at(sch, consumer, 0))

    def test_it_goes_where_both_consumers_are_and_serves_what_both_need(self) -> None:
        sch = Schedule(function(self.SOURCE), verify="full")
        sch.reverse_compute_at(block(sch, "C"), at(sch, "B", 0))
        sch.reverse_compute_at(block(sch, "D"), at(sch, "B", 0))
        sch.compute_inline(block(sch, "B"))
        assert_same_meaning(function(self.SOURCE), sch.func, exact=True)

    def test_both_consumers_in_one_loop_share_the_producer(self) -> None:
        text = self.SOURCE.replace('''    for i, j in T.grid(16, 16):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + 1.0
    for i, j in T.grid(16, 16):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi, 15 - vj] - A[vi, vj]
''', '''    for i in range(16):
        for j in range(16):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + 1.0
        for j in range(16):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = B[vi, 15 - vj] - A[vi, vj]
''')  # fmt: skip
        sch = Schedule(function(text), verify="full")
        with refused("block D reads what block B writes and is not inside", "BW322"):
            sch.compute_at(block(sch, "B"), at(sch, "C", 1))
        sch.compute_at(block(sch, "B"), at(sch, "C", 0))
        assert_same_meaning(function(text), sch.func, exact=True)


class TestInliningABlockThatUpdatesItsResult:
    """#10900: a block that reads and writes one buffer, and one with an initial value though all
    its iterators are spatial, were inlined; the result spoke of a buffer that was gone."""

    SOURCE = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), Y: T.Buffer((16,), "float32")):
    B = T.alloc_buffer((16,), "float32")
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2.0
    for i in range(16):
        with T.block("twice"):
            vi = T.axis.spatial(16, i)
            B[vi] = B[vi] + B[vi]
    for i in range(16):
        with T.block("Y"):
            vi = T.axis.spatial(16, i)
            Y[vi] = B[vi] + 1.0
"""

    def test_neither_the_update_nor_what_it_updates_is_inlined(self) -> None:
        sch = Schedule(function(self.SOURCE))
        with refused("it reads and writes B", "BW314"):
            sch.compute_inline(block(sch, "twice"))
        with refused("block twice updates the values of B", "BW314"):
            sch.compute_inline(block(sch, "B"))
        with refused("it reads and writes B", "BW314"):
            sch.reverse_compute_inline(block(sch, "twice"))

    def test_a_spatial_block_with_an_initial_value_is_not_inlined(self) -> None:
        text = self.SOURCE.replace("            B[vi] = B[vi] + B[vi]\n", """\
            with T.init():
                B[vi] = T.float32(0)
            B[vi] = B[vi] + A[vi]
""").replace("""    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi] * 2.0
""", "")  # fmt: skip
        sch = Schedule(function(text))
        with pytest.raises(ScheduleError) as caught:
            sch.compute_inline(block(sch, "twice"))
        assert caught.value.code in ("BW314", "BW324")


def test_half_a_buffer_is_not_inlined_away() -> None:
    """Inlining one of two writers of a buffer lost what the other one writes."""
    func = function("""
@T.prim_func
def main(A: T.Buffer((6,), "float32"), B: T.Buffer((5,), "float32"), Y: T.Buffer((11,), "float32")):
    C = T.alloc_buffer((11,), "float32")
    for i in range(6):
        with T.block("left"):
            vi = T.axis.spatial(6, i)
            C[vi] = A[vi]
    for i in range(5):
        with T.block("right"):
            vi = T.axis.spatial(5, i)
            C[vi + 6] = B[vi]
    for i in range(11):
        with T.block("Y"):
            vi = T.axis.spatial(11, i)
            Y[vi] = C[vi] * 2.0
""")
    sch = Schedule(func)
    for name in ("left", "right"):
        with refused("reads parts of C that other blocks write", "BW322"):
            sch.compute_inline(block(sch, name))
