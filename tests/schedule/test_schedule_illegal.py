"""Steps that must be refused: the rule is named, the guilty node underlined, the program kept."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from tests.schedule.refusals import Case, Step, function, loop, require_refusal

MAP = """
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] * 2.0
"""
SCAN = """
for i, j in T.grid(32, 31):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj + 1] = B[vi, vj] + A[vi, vj]
"""
CHAIN = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, 31 - vj] + 1.0
"""
SHUFFLED = CHAIN.replace("31 - vj", "vj * 5 % 32")
SUM = """
C = T.alloc_buffer((32,), "float32")
for i, k in T.grid(32, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = T.float32(0)
        C[vi] = C[vi] + A[vi, vk]
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] - C[vi]
"""
SKEWED = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj]
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[T.max(vi - 1, 0), T.min(vj + 1, 31)]
"""
TWICE = """
for i, u, k in T.grid(32, 2, 32):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            B[vi, 0] = T.float32(0)
        B[vi, 0] = B[vi, 0] + A[vi, vk]
"""
OVERLAP = """
for i, j in T.grid(16, 32):
    with T.block("B"):
        vi = T.axis.spatial(32, i + j // 2)
        vj = T.axis.spatial(32, j)
        B[vi, vj] = A[vi, vj] * 2.0
"""
PADDED = """
C = T.alloc_buffer((32, 32), "float32")
D = T.alloc_buffer((40, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(40, 32):
    with T.block("D"):
        vi, vj = T.axis.remap("SS", [i, j])
        D[vi, vj] = T.if_then_else(vi < 32, C[vi, vj], T.float32(0))
for i, j in T.grid(32, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = D[vi + 8, vj]
"""
SHARED = """
C = T.alloc_buffer((32, 32), "float32")
for i in range(32):
    for j in range(32):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] * 2.0
    for j in range(32):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = C[vi, 31 - vj] + 1.0
"""
GUARDED = """
C = T.alloc_buffer((32, 32), "float32")
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.where(i < 20)
        C[vi, vj] = A[vi, vj] * 2.0
for i, j in T.grid(20, 32):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = C[vi, vj] + 1.0
"""


STEPS: dict[str, tuple[str, Step, str]] = {
    "split: too small": (MAP, lambda s: s.split(loop(s, "B", 0), [2, 3]),
                         "does not provably cover"),
    "split: two open factors": (MAP, lambda s: s.split(loop(s, "B", 0), [None, None]),
                                "more than one factor is None"),
    "split: indivisible without predicate": (
        MAP, lambda s: s.split(loop(s, "B", 0), [None, 5], disable_predication=True),
        "do not provably divide"),
    "fuse: not nested": (CHAIN, lambda s: s.fuse(loop(s, "C", 0), loop(s, "B", 1)),
                         "not nested directly"),
    "fuse: wrong order": (MAP, lambda s: s.fuse(*s.get_loops(s.get_block("B"))[::-1]),
                          "not given outermost first"),
    "reorder: twice": (MAP, lambda s: s.reorder(loop(s, "B", 0), loop(s, "B", 0)), "given twice"),
    "reorder: carried dependence": (
        SCAN.replace("= B[vi, vj]", "= B[31 - vi, vj]"),
        lambda s: s.reorder(loop(s, "B", 1), loop(s, "B", 0)), "it reads and writes B"),
    "reorder: consumer reads another iteration": (
        SKEWED, lambda s: s.reorder(loop(s, "B", 1), loop(s, "B", 0)), "depend on one another"),
    "reorder: overlapping bindings": (
        OVERLAP, lambda s: s.reorder(loop(s, "B", 1), loop(s, "B", 0)), "by an iterator map"),
    "reorder: terms would count twice": (
        TWICE, lambda s: s.reorder(loop(s, "B", 2), loop(s, "B", 1)), "more than once"),
    "decompose_reduction: terms would count twice": (
        TWICE, lambda s: s.decompose_reduction(s.get_block("B"), loop(s, "B", 1)),
        "more than once"),
    "rfactor: terms would count twice": (
        TWICE.replace("i, u, k in T.grid(32, 2, 32)", "i, k, u in T.grid(32, 32, 2)"),
        lambda s: s.rfactor(loop(s, "B", 1), 0), "more than once"),
    "blockize: terms would count twice": (TWICE, lambda s: s.blockize(loop(s, "B", 1)),
                                          "more than once"),
    "parallel: carried dependence": (SCAN, lambda s: s.parallel(loop(s, "B", 1)),
                                     "it reads and writes B"),
    "parallel: reduction": (SUM, lambda s: s.parallel(loop(s, "C", 1)),
                            "drives the reduction iterator"),
    "parallel: overlapping writes": (OVERLAP, lambda s: s.parallel(loop(s, "B", 0)),
                                     "may write the same elements"),
    "parallel: consumer reads another iteration": (
        SKEWED, lambda s: s.parallel(loop(s, "B", 0)), "depend on one another"),
    "vectorize: reduction with initial value": (SUM, lambda s: s.vectorize(loop(s, "C", 1)),
                                                "drives the reduction iterator"),
    "unannotate: absent": (MAP, lambda s: s.unannotate(s.get_block("B"), "x"), "is not annotated"),
    "compute_inline: output": (MAP, lambda s: s.compute_inline(s.get_block("B")),
                               "writes an output"),
    "compute_inline: reduction": (SUM, lambda s: s.compute_inline(s.get_block("C")),
                                  "not complete"),
    "compute_inline: predicate": (GUARDED, lambda s: s.compute_inline(s.get_block("C")),
                                  "a predicate beyond the domains"),
    "compute_inline: root": (MAP, lambda s: s.compute_inline(s.get_block("root")),
                             "the root block cannot be moved"),
    "reverse_compute_inline: shuffled read": (
        SHUFFLED, lambda s: s.reverse_compute_inline(s.get_block("B")), "not a one-to-one map"),
    "reverse_compute_inline: consumer runs further": (
        PADDED, lambda s: s.reverse_compute_inline(s.get_block("D")), "may read C out of bounds"),
    "reverse_compute_inline: reduction": (
        SUM, lambda s: s.reverse_compute_inline(s.get_block("B")), "not complete"),
    "compute_at: consumer outside": (
        CHAIN + MAP.replace('"B"', '"D"').replace("A[", "C[").replace("B[", "A["),
        lambda s: s.compute_at(s.get_block("C"), loop(s, "B", 0)), "not inside loop"),
    "compute_at: output": (CHAIN, lambda s: s.compute_at(s.get_block("B"), loop(s, "C", 0)),
                           "writes an output"),
    "compute_at: own loop": (CHAIN, lambda s: s.compute_at(s.get_block("C"), loop(s, "C", 0)),
                             "inside loop i already"),
    "compute_at: index": (CHAIN, lambda s: s.compute_at(s.get_block("C"), loop(s, "B", 0), index=7),
                          "outside the legal positions"),
    "reverse_compute_at: under the reduction": (
        SUM, lambda s: s.reverse_compute_at(s.get_block("B"), loop(s, "C", 1)),
        "has not written all of C"),
    "reverse_compute_at: shuffled read": (
        SHUFFLED, lambda s: s.reverse_compute_at(s.get_block("B"), loop(s, "C", 1)),
        "does not determine which instances"),
    "decompose_reduction: below the reduction": (
        SUM.replace("for i, k in T.grid(32, 32)", "for k, i in T.grid(32, 32)"),
        lambda s: s.decompose_reduction(s.get_block("C"), loop(s, "C", 1)), "reduction iterator"),
    "decompose_reduction: nothing to decompose": (
        MAP, lambda s: s.decompose_reduction(s.get_block("B"), loop(s, "B", 0)),
        "no initial value"),
    "rfactor: spatial loop": (SUM, lambda s: s.rfactor(loop(s, "C", 0), 0),
                              "binds no reduction iterator"),
    "cache_read: number": (MAP, lambda s: s.cache_read(s.get_block("B"), 3, "local"),
                           "there is no number 3"),
    "set_scope: parameter": (MAP, lambda s: s.set_scope(s.get_block("B"), 0, "local"),
                             "is a parameter"),
    "transform_layout: not one to one": (
        CHAIN, lambda s: s.transform_layout(s.get_block("C"), "C", lambda i, j: (i // 2, j)),
        "not one to one"),
    "transform_layout: rank": (
        CHAIN, lambda s: s.transform_layout(s.get_block("C"), "C", lambda i: (i,)),
        "takes 1 indices, C has 2"),
    "tensorize: two blocks": (
        SKEWED, lambda s: s.tensorize(loop(s, "B", 0), "outer_product_4x8_float32"),
        "2 blocks are below"),
    "blockize: high digits inside": (
        MAP.replace(
            'vi, vj = T.axis.remap("SS", [i, j])',
            "vi = T.axis.spatial(32, j % 4 * 8 + i // 4)\n        vj = T.axis.spatial(32, i)"),
        lambda s: s.blockize(loop(s, "B", 1)), "no iterator map|do not divide into"),
    "tensorize: unknown": (MAP, lambda s: s.tensorize(loop(s, "B", 0), "nothing"),
                           "no tensor intrinsic 'nothing'"),
    "tensorize: other computation": (
        MAP, lambda s: s.tensorize(loop(s, "B", 0), "outer_product_32x32_float32"),
        "does not match"),
}  # fmt: skip


CASES: dict[str, Case] = {
    name: (text, step, r"BW3\d\d", words) for name, (text, step, words) in STEPS.items()
}
UNMARKED: set[str] = set()


@pytest.mark.parametrize("name", CASES)
def test_illegal_steps_are_refused_with_the_reason(name: str) -> None:
    require_refusal(name, CASES[name], UNMARKED)


def test_statements_outside_blocks_are_no_basis_for_reordering() -> None:
    func = function(MAP)
    loops = ir.loops(func)
    store = ir.blocks(func)[1].body
    values = {it.var: f.loop_var for it, f in zip(ir.blocks(func)[1].iter_vars, loops, strict=True)}
    bare = ir.substitute(store, values)
    realize = loops[1].body
    body = ir.rewrite_bottom_up(
        func.body, lambda n: ir.seq([realize, bare]) if n is realize else None
    )
    sch = Schedule(func.replace(body=body))
    with pytest.raises(ScheduleError, match="holds statements outside blocks"):
        sch.reorder(*sch.get_loops(sch.get_block("B"))[::-1])


def test_copies_under_shared_loops_move_one_iteration() -> None:
    sch = Schedule(function(SHARED), verify="full")
    read = sch.cache_read(sch.get_block("B"), "C", "local")
    written = sch.cache_write(sch.get_block("B"), 0, "local")
    row, *columns = sch.get_loops(read)
    assert sch.get(row) is sch.get(sch.get_loops(sch.get_block("C"))[0])
    assert len(columns) == 1
    assert len(sch.get_loops(written)) == 2


@pytest.mark.parametrize("word", ["break", "continue"])
def test_a_loop_that_is_left_early_keeps_its_shape(word: str) -> None:
    func = from_source(
        '@T.prim_func\ndef f(A: T.Buffer((16,), "int32"), B: T.Buffer((16,), "int32")):\n'
        "    for j, i in T.grid(1, 16):\n"
        f"        if A[i] > 5:\n            {word}\n"
        '        with T.block("B"):\n            vi = T.axis.spatial(16, i)\n'
        "            B[vi] = A[vi]\n"
    )
    sch = Schedule(func)
    outer, inner = sch.get_loops(sch.get_block("B"))
    for step in (lambda: sch.split(inner, [4, 4]), lambda: sch.fuse(outer, inner)):
        with pytest.raises(ScheduleError, match="contains a break or continue") as caught:
            step()
        assert caught.value.code == "BW312"
    sch.split(outer, [1, 1])  # the jump is not its own


ROWS = """@T.prim_func
def rows(A: T.Buffer((16, 8), "float32"), B: T.Buffer((16, 8), "float32")):
    for i, j in T.grid(16, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1.0
"""


@pytest.mark.parametrize("parallel_first", [False, True])
def test_a_kernel_has_no_threads_but_those_of_its_axes(parallel_first: bool) -> None:
    sch = Schedule(from_source(ROWS))
    i, j = sch.get_loops(sch.get_block("B"))
    if parallel_first:
        sch.parallel(j)
        with pytest.raises(ScheduleError, match="no threads but those of its axes") as caught:
            sch.bind(i, "blockIdx.x")
    else:
        sch.bind(i, "blockIdx.x")
        with pytest.raises(ScheduleError, match="no threads but those of its axes") as caught:
            sch.parallel(j)
    assert caught.value.code == "BW312"
    assert 'bind(j, "threadIdx.x")' in str(caught.value)


def test_parallel_loops_do_not_move_into_a_kernel() -> None:
    sch = Schedule(from_source(ROWS))
    i, j = sch.get_loops(sch.get_block("B"))
    sch.parallel(i)
    sch.bind(j, "threadIdx.x")  # each of 16 iterations launches a kernel
    with pytest.raises(ScheduleError) as caught:
        sch.reorder(j, i)
    assert caught.value.code == "BW312"


def test_parallel_loops_that_become_several_share_no_buffer_of_their_iterations() -> None:
    sch = Schedule(
        from_source("""@T.prim_func
def add(A: T.Buffer((16, 8), "float32"), C: T.Buffer((16,), "float32"),
        B: T.Buffer((16, 8), "float32")):
    for i, j in T.grid(16, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + C[vi]
""")
    )
    copy = sch.cache_read(sch.get_block("B"), 1, "global")
    i, j = sch.get_loops(sch.get_block("B"))
    sch.compute_at(copy, j)
    sch.parallel(j)  # every iteration has a copy of its own
    with pytest.raises(ScheduleError, match="may write the same elements of C_global") as caught:
        sch.loop_partition(i, [None, 4])
    assert caught.value.code == "BW317"
