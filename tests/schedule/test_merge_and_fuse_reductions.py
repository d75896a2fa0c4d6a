"""Initial values that go back into their reduction, and epilogues that become its first term."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import BlockRV, LoopRV, Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.testing import assert_same_meaning
from blockwright.verify import verify

HEAD = """
@T.prim_func
def main(A: T.Buffer((16, 32), "float32"), S: T.Buffer((16,), "float32"),
         D: T.Buffer((16,), "float32")):
"""
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, d: T.handle):
    n = T.int64()
    m = T.int64()
    A = T.match_buffer(a, (n, m), "float32")
    D = T.match_buffer(d, (n,), "float32")
"""
Step = Callable[[Schedule], object]


def function(text: str) -> ir.PrimFunc:
    whole = (
        text
        if "prim_func" in text
        else HEAD + "\n".join(f"    {line}" for line in text.splitlines())
    )
    parsed = from_source(whole)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


def block(sch: Schedule, name: str) -> BlockRV:
    return sch.get_block(name)


def loop(sch: Schedule, name: str, position: int) -> LoopRV:
    return sch.get_loops(sch.get_block(name))[position]


SUM = """
for i, k in T.grid(16, 32):
    with T.block("D"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            D[vi] = S[vi]
        D[vi] = D[vi] + A[vi, vk]
"""
PAIRS = """
@T.prim_func
def main(A: T.Buffer((16, 32), "float32"), D: T.Buffer((16,), "float32"),
         P: T.Buffer((16,), "int64")):
    best = T.comm_reducer("argmax", ["float32", "int64"])
    for i, k in T.grid(16, 32):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            best.step((D[vi], P[vi]), (A[vi, vk], vk))
"""
DYNAMIC = (
    SYMBOLIC
    + """
    for i, k in T.grid(n, m):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = T.float32(-1)
            D[vi] = T.max(D[vi], A[vi, vk])
"""
)


def _tile(sch: Schedule) -> None:
    """Both loops split by sizes that do not divide, the reduction outermost."""
    i, k = sch.get_loops(block(sch, "D"))
    i0, i1 = sch.split(i, [None, 5])
    k0, k1 = sch.split(k, [None, 7])
    sch.reorder(i0, k0, i1, k1)


TOGETHER: dict[str, tuple[str, Step, int]] = {
    "as written": (SUM, lambda s: None, 1),
    "around the nest": (SUM, lambda s: None, 0),
    "with the reduction outside": (SUM, lambda s: s.reorder(*s.get_loops(block(s, "D"))[::-1]), 0),
    "tiles with remainders": (SUM, _tile, 1),
    "pairs": (PAIRS, lambda s: None, 1),
    "symbolic sizes": (DYNAMIC, lambda s: None, 1),
    "symbolic sizes, split": (DYNAMIC, lambda s: s.split(loop(s, "D", 1), [None, 4]), 1),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_merging_undoes_decomposing(name: str) -> None:
    text, prepare, position = TOGETHER[name]
    sch = Schedule(function(text), verify="full")
    prepare(sch)
    before = sch.func
    update = block(sch, "D")
    init = sch.decompose_reduction(update, sch.get_loops(update)[position])
    sch.merge_reduction(init, update)
    ir.assert_structural_equal(sch.func, before)
    with pytest.raises(ScheduleError, match="is gone"):
        sch.get(init)
    assert sch.get(update) is sch.get(block(sch, "D"))


@pytest.mark.parametrize("columns", [0, 1, 6])
def test_a_fill_in_a_nest_of_its_own_is_merged(columns: int) -> None:
    """Also where there is nothing to reduce, which leaves the initial value."""
    func = function(
        SYMBOLIC
        + """
    for u in range(n):
        with T.block("fill"):
            vu = T.axis.spatial(n, u)
            D[vu] = T.float32(1) + T.Cast("float32", vu)
    for i, k in T.grid(n, m):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            D[vi] = D[vi] * A[vi, vk]
"""
    )
    sch = Schedule(func, verify="full")
    sch.merge_reduction(block(sch, "fill"), block(sch, "D"))
    assert [b.name for b in ir.blocks(sch.func.body)] == ["root", "D"]
    assert_same_meaning(func, sch.func, sizes={"n": 5, "m": columns}, exact=True)


FILL = """
for i in range(16):
    with T.block("fill"):
        vi = T.axis.spatial(16, i)
        D[vi] = T.float32(0)
"""
ADD = """
for i, k in T.grid(16, 32):
    with T.block("D"):
        vi, vk = T.axis.remap("SR", [i, k])
        D[vi] = D[vi] + A[vi, vk]
"""
MERGE: dict[str, tuple[str, Step | None, str, str]] = {
    "initial value inside": (FILL + SUM, None, "BW336", "is not an update"),
    "wrong way round": (
        FILL + ADD, lambda s: s.merge_reduction(block(s, "D"), block(s, "fill")), "BW336",
        "is not an update"),
    "too few elements": (
        FILL.replace("range(16)", "range(8)").replace("(16, i)", "(8, i)") + ADD, None, "BW336",
        "cover different elements"),
    "more elements": (
        FILL + ADD.replace("grid(16", "grid(8"), None, "BW336", "cover different elements"),
    "every second element": (
        FILL + ADD.replace("grid(16", "grid(8").replace("D[vi]", "D[vi * 2]"), None, "BW336",
        "may skip some"),
    "set anew in each step": ("""
for k in range(32):
    for i in range(16):
        with T.block("fill"):
            vi = T.axis.spatial(16, i)
            D[vi] = T.float32(0)
    for i in range(16):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            D[vi] = D[vi] + A[vi, vk]
""", None, "BW336", "set again in each of its iterations"),
    "a reader in between": (FILL + """
for i in range(16):
    with T.block("look"):
        vi = T.axis.spatial(16, i)
        S[vi] = D[vi]
""" + ADD, None, "BW336", "look accesses D"),
    "a reader in the loop of the update": (FILL + """
for k in range(32):
    for i in range(16):
        with T.block("look"):
            vi, vk = T.axis.remap("SS", [i, k])
            A[vi, vk] = D[vi]
    for i in range(16):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            D[vi] = D[vi] + T.float32(1)
""", None, "BW336", "look accesses D"),
    "what it is made of changes": (FILL.replace("T.float32(0)", "S[vi]") + """
for i in range(16):
    with T.block("change"):
        vi = T.axis.spatial(16, i)
        S[vi] = T.float32(3)
""" + ADD, None, "BW336", "change accesses S"),
    "the first step left out": (
        FILL + ADD.replace("        D[vi] = D", "        T.where(k >= 2)\n        D[vi] = D"), None,
        "BW336", "may skip the first step"),
    "steps backwards": (
        FILL + ADD.replace('vi, vk = T.axis.remap("SR", [i, k])',
                           "vi = T.axis.spatial(16, i)\n        vk = T.axis.reduce(32, 31 - k)"),
        None, "BW336", "start at the minimum"),
    "steps from the second on": (
        FILL + ADD.replace('vi, vk = T.axis.remap("SR", [i, k])',
                           "vi = T.axis.spatial(16, i)\n        vk = T.axis.reduce(32, k + 1)")
        .replace("grid(16, 32)", "grid(16, 31)"),
        None, "BW336", "first value"),
    "steps taken twice": (
        FILL + ADD.replace("i, k in T.grid(16, 32)", "i, u, k in T.grid(16, 2, 32)"), None,
        "BW336", "more than once"),
    "steps at the same time": (
        FILL + ADD, lambda s: (s.vectorize(loop(s, "D", 1)),
                               s.merge_reduction(block(s, "fill"), block(s, "D"))),
        "BW336", "is vectorized"),
    "a guarded nest": (
        "if A[0, 0] > T.float32(0):\n" + "\n".join(f"    {x}" for x in FILL.splitlines()) + ADD,
        None, "BW336", "decides what runs"),
    "an index of another kind": (
        FILL.replace("D[vi]", "D[15 - vi]") + ADD, None, "BW336", "are not determined by"),
    "another buffer too": (
        FILL + "        S[vi] = T.float32(0)\n" + ADD, None, "BW336",
        "does not set just one initial value"),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGE)
def test_what_cannot_be_merged_is_refused(name: str) -> None:
    text, step, codes, words = MERGE[name]
    sch = Schedule(function(text), verify="full")
    with pytest.raises(ScheduleError, match=words) as caught:
        (step or (lambda s: s.merge_reduction(block(s, "fill"), block(s, "D"))))(sch)
    assert caught.value.code in codes.split("|"), str(caught.value)


# ------------------------------------------------------------------------------------- epilogues
def epilogue(combine: str, start: str, last: str) -> str:
    return f"""
C = T.alloc_buffer((16,), "float32")
for i, k in T.grid(16, 32):
    with T.block("C"):
        vi, vk = T.axis.remap("SR", [i, k])
        with T.init():
            C[vi] = T.float32({start})
        C[vi] = {combine}
for i in range(16):
    with T.block("E"):
        vi = T.axis.spatial(16, i)
        D[vi] = {last}
"""


ADDED, LARGER = "C[vi] + A[vi, vk]", "T.max(C[vi], A[vi, vk])"
FOLDED = {
    "bias": (epilogue(ADDED, "0", "C[vi] + S[vi]"), "S[vi]"),
    "bias in front": (epilogue(ADDED, "0", "S[vi] + C[vi]"), "S[vi]"),
    "two of them": (epilogue(ADDED, "0", "S[vi] + C[vi] + T.float32(2)"), "S[vi] + T.float32(2.0)"),
    "copy": (epilogue(ADDED, "0", "C[vi]"), "T.float32(0.0)"),
    "factor of a product": (
        epilogue("C[vi] * A[vi, vk]", "1", "C[vi] * T.float32(0.5)"), "T.float32(0.5)"),
    "ReLU of a maximum": (epilogue(LARGER, '"-inf"', "T.max(C[vi], T.float32(0))"),
                          "T.float32(0.0)"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_what_is_combined_alike_becomes_the_first_term(name: str) -> None:
    text, first = FOLDED[name]
    sch = Schedule(function(text), verify="full")
    sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    (made,) = [b for b in ir.blocks(sch.func.body) if b.name == "C"]
    assert isinstance(made.init, ir.BufferStore)
    assert repr(made.init.value) == first
    assert [r.buffer.name for r in made.writes] == ["D"]
    assert not sch.func.root.alloc_buffers
    for seed in range(3):
        assert_same_meaning(function(text), sch.func, seed=seed, exact="ReLU" in name)


def test_an_epilogue_of_fewer_elements_narrows_the_reduction() -> None:
    """What the epilogue leaves out is not needed by anyone else."""
    text = (
        epilogue(ADDED, "0", "C[vi] + S[vi]")
        .replace("in range(16)", "in range(10)")
        .replace("spatial(16, i)", "spatial(10, i)")
    )
    sch = Schedule(function(text), verify="full")
    sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    assert_same_meaning(function(text), sch.func)


def test_tiled_and_shared_loops_stay() -> None:
    text = epilogue(ADDED, "0", "C[vi] + S[vi]")
    sch = Schedule(function(text), verify="full")
    i0, _ = sch.split(loop(sch, "C", 0), [None, 5])
    sch.reverse_compute_at(block(sch, "E"), i0)
    sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    assert_same_meaning(function(text), sch.func)
    c = block(sch, "C")
    sch.decompose_reduction(c, sch.get_loops(c)[2])
    assert_same_meaning(function(text), sch.func)


RELU = epilogue(ADDED, "0", "T.max(C[vi], T.float32(0))")
BIAS = epilogue(ADDED, "0", "C[vi] + S[vi]")
FUSE: dict[str, tuple[str, str, str]] = {
    "ReLU folded into a running sum": (RELU, "BW337", "would be applied to partial results"),
    "scaled sum": (epilogue(ADDED, "0", "C[vi] * T.float32(2)"), "BW337",
                   "a factor would have to be distributed"),
    "minimum of a maximum": (
        epilogue(LARGER, '"-inf"', "T.min(C[vi], S[vi])"), "BW337", "by max, the reducer"),
    "used twice": (epilogue(ADDED, "0", "C[vi] + C[vi]"), "BW337", "combine the result by sum"),
    "difference": (epilogue(ADDED, "0", "C[vi] - S[vi]"), "BW337", "combine the result by sum"),
    "not neutral": (epilogue(ADDED, "1", "C[vi] + S[vi]"), "BW337", "identity value"),
    "shifted": (BIAS.replace("C[vi] + S[vi]", "C[15 - vi] + S[vi]"), "BW337",
                "at its own iterators"),
    "needed elsewhere": (BIAS + """
for i in range(16):
    with T.block("F"):
        vi = T.axis.spatial(16, i)
        S[vi] = C[vi]
""", "BW337", "block F uses C too"),
    "result outlives": (
        BIAS.replace('C = T.alloc_buffer((16,), "float32")', "C = T.meta_var(S)")
        .replace("+ S[vi]", "+ A[vi, 0]"), "BW337", "outlives the scope"),
    "bias changes": (BIAS.replace("for i in range(16):", """for i in range(16):
    with T.block("F"):
        vi = T.axis.spatial(16, i)
        S[vi] = T.float32(3)
for i in range(16):""", 1), "BW337", "F accesses S"),
    "output used before": (BIAS.replace("for i in range(16):", """for i in range(16):
    with T.block("F"):
        vi = T.axis.spatial(16, i)
        A[vi, 0] = D[vi]
for i in range(16):""", 1), "BW337", "F accesses D"),
    "no reduction": (BIAS.replace("        with T.init():\n            C[vi] = T.float32(0)\n", ""),
                     "BW337", "is not a reduction"),
    "partial results": ("""
C = T.alloc_buffer((16,), "float32")
for k in range(32):
    for i in range(16):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
    for i in range(16):
        with T.block("E"):
            vi = T.axis.spatial(16, i)
            D[vi] = C[vi] + S[vi]
""", "BW337", "before block C has finished"),
    "two stores": (
        BIAS + "        S[vi] = T.float32(0)\n", "BW324|BW314", "single store|not complete"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSE)
def test_an_epilogue_that_would_change_the_meaning_is_refused(name: str) -> None:
    text, codes, words = FUSE[name]
    sch = Schedule(function(text), verify="full")
    before = sch.func
    with pytest.raises(ScheduleError, match=words) as caught:
        sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    assert caught.value.code in codes.split("|"), str(caught.value)
    assert sch.func is before


def test_the_refusal_of_a_relu_says_what_to_do_and_that_works() -> None:
    sch = Schedule(function(RELU), verify="full")
    with pytest.raises(ScheduleError, match="reverse_compute_at"):
        sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    sch.reverse_compute_at(block(sch, "E"), loop(sch, "C", 0))
    assert_same_meaning(function(RELU), sch.func, exact=True)


def test_a_pair_has_no_epilogue() -> None:
    pairs = PAIRS.replace("(D[vi], P[vi])", "(C[vi], P[vi])").replace('"D")', '"C")')
    text = pairs.replace("    best =", '    C = T.alloc_buffer((16,), "float32")\n    best =') + """
    for i in range(16):
        with T.block("E"):
            vi = T.axis.spatial(16, i)
            D[vi] = T.max(C[vi], T.float32(0))
"""  # fmt: skip
    sch = Schedule(function(text), verify="full")
    with pytest.raises(ScheduleError, match="reduces a tuple") as caught:
        sch.fuse_reduction_epilogue(block(sch, "C"), block(sch, "E"))
    assert caught.value.code == "BW337"


def test_what_each_iteration_writes_anew_is_not_read_in_the_same_loop() -> None:
    """The reader sees the last value of all; in one loop it would see each."""
    sch = Schedule(from_source("""
@T.prim_func
def main(A: T.Buffer((4,), "float32"), C: T.Buffer((4,), "float32")):
    t = T.alloc_buffer((1,), "float32")
    for i in range(4):
        with T.block("W"):
            vi = T.axis.opaque(4, i)
            T.reads(A[vi])
            T.writes(t[0])
            t[0] = A[vi]
    for i in range(4):
        with T.block("R"):
            vi = T.axis.spatial(4, i)
            C[vi] = t[0]
"""), verify="full")  # fmt: skip
    with pytest.raises(ScheduleError, match="BW316"):
        sch.merge(sch.get_loops("W")[0], sch.get_loops("R")[0])


def test_blocks_in_several_places_share_a_loop_where_iterations_keep_apart() -> None:
    """Behind a pipeline the producer of the next iteration and the consumer of this one."""
    program = from_source("""
@T.prim_func
def main(A: T.Buffer((6, 8), "float32"), C: T.Buffer((6, 8), "float32")):
    B = T.alloc_buffer((6, 8), "float32")
    for i in range(6):
        for j in range(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
        for j in range(8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = B[vi, vj] + 1.0
""")
    sch = Schedule(program, verify="full")
    sch.software_pipeline(sch.get_loops("B")[0], [0, 1], [1, 0])
    sch.merge(sch.get_loops("C")[1], sch.get_loops("B")[1])
    assert verify(program, sch.func).verdict == "proved"
