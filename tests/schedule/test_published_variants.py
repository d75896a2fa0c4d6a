"""Variants of the published miscompilations: symbolic sizes, ragged tiles, predicates, more axes.

Each step is refused with the code stated, or the program afterwards computes what it did.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning

Steps = Callable[[Schedule], object]
RIGHT = ""


class Variant(msgspec.Struct, frozen=True):
    """A program, steps on it, and the code of their refusal; none where they are right."""

    text: str
    steps: Steps
    code: str = RIGHT
    sizes: tuple[dict[str, int], ...] = ({},)


def at(sch: Schedule, block: str, position: int, tile: int | None = None) -> LoopRV:
    loop = sch.get_loops(sch.get_block(block))[position]
    return loop if tile is None else sch.split(loop, [None, tile])[0]


def block(sch: Schedule, name: str) -> BlockRV:
    return sch.get_block(name)


def sized(*values: int) -> tuple[dict[str, int], ...]:
    return tuple({"n": value} for value in values)


def reverse(name: str, producer: str, position: int, tile: int | None = None) -> Steps:
    return lambda s: s.reverse_compute_at(block(s, name), at(s, producer, position, tile))


def forward(name: str, consumer: str, position: int, tile: int | None = None) -> Steps:
    return lambda s: s.compute_at(block(s, name), at(s, consumer, position, tile))


# ------------------------------------------------- a consumer past a producer that makes a part
HALO = """
@T.prim_func
def main(a: T.handle, e: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n + 2, 6), "float32")
    E = T.match_buffer(e, (n, 6), "float32")
    D = T.alloc_buffer((n + 2, 6), "float32")
    for i, j in T.grid(n + 2, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(n, 6):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = D[vi + SHIFT, 5 - vj] + 1.0
"""
GUARDED = """
@T.prim_func
def main(A: T.Buffer((20, 6), "float32"), E: T.Buffer((20, 6), "float32")):
    D = T.alloc_buffer((20, 6), "float32")
    for i, j in T.grid(20, 6):
        with T.block("zero"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.float32(0)
    for i, j in T.grid(20, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i < 13)
            D[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(20, 6):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = D[vi, vj] + 1.0
"""
PARTIAL = {
    "symbolic, read at its own row": Variant(
        HALO.replace("SHIFT", "0"), reverse("E", "D", 0), RIGHT, sized(1, 4, 9)),
    "symbolic, read two rows further": Variant(
        HALO.replace("SHIFT", "2"), reverse("E", "D", 0), RIGHT, sized(1, 4, 9)),
    "symbolic, ragged tiles": Variant(
        HALO.replace("SHIFT", "1"), reverse("E", "D", 0, 4), RIGHT, sized(1, 4, 9)),
    "symbolic, ragged tiles of the inner axis": Variant(
        HALO.replace("SHIFT", "1"), reverse("E", "D", 1, 4), RIGHT, sized(1, 4)),
    "a predicate ends the producer": Variant(GUARDED, reverse("E", "D", 0)),
    "a predicate ends the producer of tiles": Variant(GUARDED, reverse("E", "D", 0, 4)),
    "where the zeros are written": Variant(GUARDED, reverse("E", "zero", 0), "BW322"),
}  # fmt: skip

# ------------------------------------------------------------------ a cached result of a reduction
SUM = """
@T.prim_func
def main(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n, 10, 6), "float32")
    Y = T.match_buffer(y, (n, 6), "float32")
    for i, k, j in T.grid(n, 10, 6):
        with T.block("sum"):
            vi, vk, vj = T.axis.remap("SRS", [i, k, j])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + X[vi, vk, vj]
"""
GUARDED_SUM = SUM.replace("T.grid(n, 10, 6)", "T.grid(n, 12, 6)").replace(
    'vi, vk, vj = T.axis.remap("SRS", [i, k, j])',
    "vi = T.axis.spatial(n, i)\n            vk = T.axis.reduce(10, k)\n"
    "            vj = T.axis.spatial(6, j)\n            T.where(k < 10)",
)


def cached(position: int, tile: int | None = None) -> Steps:
    def steps(sch: Schedule) -> None:
        loop = at(sch, "sum", position, tile)
        copy = sch.cache_write(block(sch, "sum"), 0, "local")
        sch.reverse_compute_at(copy, loop)

    return steps


def cached_and_decomposed(sch: Schedule) -> None:
    outer = at(sch, "sum", 0, 4)
    copy = sch.cache_write(block(sch, "sum"), 0, "local")
    sch.reverse_compute_at(copy, outer)
    sch.decompose_reduction(block(sch, "sum"), sch.get_loops(block(sch, "sum"))[2])


CACHED = {
    "symbolic, outside the reduction": Variant(SUM, cached(0), RIGHT, sized(1, 5)),
    "symbolic, ragged tiles outside the reduction": Variant(SUM, cached(0, 4), RIGHT, sized(1, 6)),
    "under the reduction loop": Variant(SUM, cached(1), "BW316"),
    "under a ragged tile of the reduction": Variant(SUM, cached(1, 4), "BW316"),
    "under a spatial loop inside the reduction": Variant(SUM, cached(2), "BW316"),
    "a predicate ends the reduction": Variant(GUARDED_SUM, cached(1), "BW316"),
    "a predicate ends the reduction, outside of it": Variant(
        GUARDED_SUM, cached(0, 4), RIGHT, sized(1, 6)),
    "and the sum is decomposed": Variant(SUM, cached_and_decomposed, RIGHT, sized(1, 6)),
}  # fmt: skip

# ------------------------------------------------------------ a transpose and a reduction before it
MATMUL = """
@T.prim_func
def main(a: T.handle, B: T.Buffer((2, 5, 7), "float32"), y: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (2, n, 5), "float32")
    Y = T.match_buffer(y, (7, 2, n), "float32")
    C = T.alloc_buffer((2, n, 7), "float32")
    for b, i, j, k in T.grid(2, n, 7, 5):
        with T.block("matmul"):
            vb, vi, vj, vk = T.axis.remap("SSSR", [b, i, j, k])
            with T.init():
                C[vb, vi, vj] = T.float32(0)
            C[vb, vi, vj] = C[vb, vi, vj] + A[vb, vi, vk] * B[vb, vk, vj]
    for j, b, i in T.grid(7, 2, n):
        with T.block("transpose"):
            vj, vb, vi = T.axis.remap("SSS", [j, b, i])
            Y[vj, vb, vi] = C[vb, vi, vj]
"""


def decomposed_first(sch: Schedule) -> None:
    sch.decompose_reduction(block(sch, "matmul"), at(sch, "matmul", 3))
    sch.reverse_compute_inline(block(sch, "transpose"))


TRANSPOSED = {
    "batched and symbolic": Variant(
        MATMUL, lambda s: s.reverse_compute_inline(block(s, "transpose")), "BW314"),
    "taken apart before": Variant(MATMUL, decomposed_first, "BW314"),
    "the product inlined": Variant(
        MATMUL, lambda s: s.compute_inline(block(s, "matmul")), "BW314"),
    "moved below the ragged rows": Variant(
        MATMUL, reverse("transpose", "matmul", 1, 4), RIGHT, sized(1, 4, 6)),
    "moved below the ragged columns": Variant(
        MATMUL, reverse("transpose", "matmul", 2, 3), RIGHT, sized(1, 6)),
    "moved below the reduction": Variant(MATMUL, reverse("transpose", "matmul", 3), "BW316"),
    "the product moved to ragged columns": Variant(
        MATMUL, forward("matmul", "transpose", 0, 3), RIGHT, sized(1, 6)),
}  # fmt: skip

# ------------------------------------------------------------ a predicate over loops not yet open
NARROW = """
@T.prim_func
def main(a: T.handle, y: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n + 3, 9), "float32")
    Y = T.match_buffer(y, (n, 7), "float32")
    B = T.alloc_buffer((n + 3, 9), "float32")
    for i, j in T.grid(n + 3, 9):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(n, 7):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = B[vi + 3, 8 - vj] + 1.0
"""
SIX_ROWS = NARROW.replace("n = T.int64()", "n = T.meta_var(6)")
GUARDED_NARROW = NARROW.replace(
    "            B[vi, vj] =", "            T.where(j < 8)\n            B[vi, vj] ="
)


def fused_and_inlined(sch: Schedule) -> None:
    sch.split(sch.fuse(*sch.get_loops(block(sch, "B"))), [None, 4])
    sch.reverse_compute_inline(block(sch, "Y"))


def split_and_inlined(sch: Schedule) -> None:
    for position in (1, 0):
        at(sch, "B", position, 4)
    sch.reverse_compute_inline(block(sch, "Y"))


def reordered_and_inlined(sch: Schedule) -> None:
    outer, inner = sch.split(at(sch, "B", 0), [None, 4])
    sch.reorder(inner, at(sch, "B", 2), outer)
    sch.reverse_compute_inline(block(sch, "Y"))


PREDICATED = {
    "symbolic and shifted": Variant(
        NARROW, lambda s: s.reverse_compute_inline(block(s, "Y")), RIGHT, sized(1, 5)),
    "ragged tiles on both axes": Variant(NARROW, split_and_inlined, RIGHT, sized(1, 4, 6)),
    "fused and split again, of any size": Variant(
        NARROW, fused_and_inlined, RIGHT, sized(1, 4, 5, 6)),
    "fused and split again": Variant(SIX_ROWS, fused_and_inlined),
    "tiles outermost and innermost": Variant(NARROW, reordered_and_inlined, RIGHT, sized(1, 6)),
    "a producer that is guarded": Variant(
        GUARDED_NARROW,
        lambda s: s.reverse_compute_inline(block(s, "Y")), "BW358"),
    "a producer that is guarded, inlined forwards": Variant(
        GUARDED_NARROW,
        lambda s: s.compute_inline(block(s, "B")), "BW356"),
}  # fmt: skip

# --------------------------------------------------------------------------- a sum over constants
CONSTANT = """
@T.prim_func
def main(y: T.handle):
    n = T.int64()
    Y = T.match_buffer(y, (n, 4), "float32")
    C = T.alloc_buffer((n, 10), "float32")
    S = T.alloc_buffer((n, 4), "float32")
    for i, k in T.grid(n, 10):
        with T.block("C"):
            vi, vk = T.axis.remap("SS", [i, k])
            C[vi, vk] = T.float32(0.5)
    for i, j, k in T.grid(n, 4, 10):
        with T.block("S"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                S[vi, vj] = T.float32(0)
            S[vi, vj] = S[vi, vj] + C[vi, vk]
    for i, j in T.grid(n, 4):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = S[vi, vj]
"""


def constant(position: int, tile: int | None, terms: int | None) -> Steps:
    def steps(sch: Schedule) -> None:
        sch.compute_inline(block(sch, "C"))
        sch.compute_at(block(sch, "S"), at(sch, "Y", position, tile))
        if terms is not None:
            loops = sch.get_loops(block(sch, "S"))
            sch.rfactor(sch.split(loops[-1], [None, terms])[1], 0)

    return steps


def constant_cached(sch: Schedule) -> None:
    sch.cache_read(block(sch, "S"), 0, "local")
    sch.compute_inline(block(sch, "C"))
    sch.compute_inline(block(sch, "C_local"))
    sch.reverse_compute_at(block(sch, "Y"), at(sch, "S", 1))


CONSTANTS = {
    "symbolic": Variant(CONSTANT, constant(1, None, None), RIGHT, sized(1, 5)),
    "ragged tiles": Variant(CONSTANT, constant(0, 4, None), RIGHT, sized(1, 6)),
    "split into partial sums": Variant(CONSTANT, constant(1, None, 5), RIGHT, sized(1, 5)),
    "split raggedly into partial sums": Variant(CONSTANT, constant(0, 4, 4), RIGHT, sized(1, 6)),
    "cached and inlined twice": Variant(CONSTANT, constant_cached, RIGHT, sized(1, 5)),
}  # fmt: skip

# ------------------------------------------------------------------ a producer with two consumers
TWO = """
@T.prim_func
def main(a: T.handle, c: T.handle, d: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n + 2, 8), "float32")
    C = T.match_buffer(c, (n, 8), "float32")
    D = T.match_buffer(d, (n, 8), "float32")
    B = T.alloc_buffer((n + 2, 8), "float32")
    for i, j in T.grid(n + 2, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(n, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + B[vi + 1, vj]
    for i, j in T.grid(n, 8):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = B[vi + 2, 7 - vj] - C[vi, vj]
"""


def in_one_loop(tile: int | None, store: bool) -> Steps:
    def steps(sch: Schedule) -> None:
        loop = at(sch, "D", 0, tile)
        sch.compute_at(block(sch, "C"), loop)
        sch.compute_at(block(sch, "B"), loop)
        if store:
            sch.store_at(block(sch, "B"), loop)

    return steps


def first_of_them_inlined(sch: Schedule) -> None:
    sch.reverse_compute_inline(block(sch, "C"))


CONSUMERS = {
    "the first one's loop": Variant(TWO, forward("B", "C", 0), "BW322"),
    "the second one's ragged tiles": Variant(TWO, forward("B", "D", 0, 4), "BW322"),
    "both outputs, one moved first": Variant(TWO, forward("C", "D", 0), "BW322"),
    "one inlined back": Variant(TWO, first_of_them_inlined, "BW322|BW324|BW325"),
    "inlined into both": Variant(TWO, lambda s: s.compute_inline(block(s, "B")), RIGHT,
                                 sized(1, 5)),
    "one consumer brought to the other, then the producer": Variant(
        TWO, lambda s: (s.reverse_compute_at(block(s, "D"), at(s, "C", 0, 4)),
                        s.compute_at(block(s, "B"), at(s, "C", 0))), RIGHT, sized(1, 4, 6)),
    "the same, stored per tile": Variant(
        TWO, lambda s: (s.reverse_compute_at(block(s, "D"), at(s, "C", 0, 4)),
                        s.compute_at(block(s, "B"), at(s, "C", 0)),
                        s.store_at(block(s, "B"), at(s, "C", 0))), RIGHT, sized(1, 4, 6)),
    "in the loop of one output that the other reads": Variant(
        TWO, in_one_loop(4, True), "BW322"),
}  # fmt: skip

# ------------------------------------------------------------- a block that updates what it writes
UPDATE = """
@T.prim_func
def main(a: T.handle, y: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 6), "float32")
    Y = T.match_buffer(y, (n, 6), "float32")
    B = T.alloc_buffer((n, 6), "float32")
    for i, j in T.grid(n, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2.0
    for i, j in T.grid(n, 6):
        with T.block("twice"):
            vi, vj = T.axis.remap("SS", [i, j])
            WHERE
            B[vi, vj] = B[vi, READ] + A[vi, vj]
    for i, j in T.grid(n, 6):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = B[vi, vj] + 1.0
"""


def update(read: str = "vj", where: str = "") -> str:
    return UPDATE.replace("READ", read).replace(
        "            WHERE\n", where and f"{' ' * 12}{where}\n"
    )


UPDATES = {
    "symbolic, the update": Variant(
        update(), lambda s: s.compute_inline(block(s, "twice")), "BW314"),
    "symbolic, what it updates": Variant(
        update(), lambda s: s.compute_inline(block(s, "B")), "BW314"),
    "an update of the neighbour": Variant(
        update("T.max(vj - 1, 0)"), lambda s: s.compute_inline(block(s, "twice")), "BW314"),
    "an update of the neighbour, inlined back": Variant(
        update("T.max(vj - 1, 0)"), lambda s: s.reverse_compute_inline(block(s, "twice")), "BW314"),
    "a guarded update": Variant(
        update(where="T.where(j < 4)"), lambda s: s.reverse_compute_inline(block(s, "Y")), "BW314"),
    "a guarded update, moved": Variant(
        update(where="T.where(j < 4)"), forward("twice", "Y", 0), "BW314"),
    "the consumer of an update, moved": Variant(
        update(), reverse("Y", "twice", 0, 4), RIGHT, sized(1, 4, 6)),
    "the consumer past the update": Variant(update(), reverse("Y", "B", 0), "BW322"),
    "what an update reads, in copies": Variant(
        update("T.max(vj - 1, 0)"), lambda s: s.cache_inplace(block(s, "twice"), 0, "local"), RIGHT,
        sized(1, 4)),
}  # fmt: skip

FAMILIES: dict[str, dict[str, Variant]] = {
    "partial producer": PARTIAL,
    "cached reduction": CACHED,
    "transpose into a reduction": TRANSPOSED,
    "predicate": PREDICATED,
    "sum of a constant": CONSTANTS,
    "two consumers": CONSUMERS,
    "update": UPDATES,
}
ALL = {
    f"{family}: {name}": variant
    for family, variants in FAMILIES.items()
    for name, variant in variants.items()
}


@pytest.mark.parametrize("name", ALL)
def test_refused_or_right(name: str) -> None:
    variant = ALL[name]
    func = from_source(variant.text)
    assert isinstance(func, ir.PrimFunc)
    sch = Schedule(func, verify="full")
    if variant.code:
        with pytest.raises(ScheduleError) as caught:
            variant.steps(sch)
        assert caught.value.code in variant.code.split("|"), str(caught.value)
        return
    variant.steps(sch)
    exact = not any("rfactor" in str(step) for step in str(sch.trace).splitlines())
    for sizes in variant.sizes:
        assert_same_meaning(func, sch.func, sizes=sizes or None, exact=exact)
