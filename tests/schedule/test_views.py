"""Steps on programs that name one memory twice: dependence asks for the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.testing import assert_same_meaning

Step = Callable[[bw.Schedule], Any]

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32"), E: T.Buffer((8,), "float32")):
"""
SAME = '    D = T.decl_buffer((8, 8), "float32", data=C.data)\n'
ROWS = '    D = T.decl_buffer((4, 8), "float32", data=T.address_of(C[4, 0]))\n'
FLAT = '    D = T.decl_buffer((64,), "float32", data=C.data)\n'
OFFSET = '    D = T.decl_buffer((7, 8), "float32", data=C.data, elem_offset=8)\n'
STRIDED = '    D = T.decl_buffer((4, 8), "float32", data=C.data, strides=[16, 1])\n'
NESTED = FLAT + '    G = T.decl_buffer((4, 8), "float32", data=T.address_of(D[32]))\n'
BITS = '    D = T.decl_buffer((8, 8), "int32", data=C.data)\n'
BYTES = '    D = T.decl_buffer((256,), "uint8", data=C.data)\n'

# What the first line of a program writes through a view is read, below, through the buffer; every
# one of these depends from iteration to iteration, along both loops.
DIAGONAL = """
    for i, j in T.grid(7, 7):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            {store} = {value}
"""
DEPENDENT = {
    "same": SAME + DIAGONAL.format(store="D[vi + 1, vj]", value="C[vi, vj + 1] + T.float32(1)"),
    "other way": SAME + DIAGONAL.format(store="C[vi + 1, vj]",
                                        value="D[vi, vj + 1] + T.float32(1)"),
    "flat": FLAT + DIAGONAL.format(store="D[vi * 8 + vj + 8]",
                                   value="C[vi, vj + 1] + T.float32(1)"),
    "offset": OFFSET + DIAGONAL.format(store="D[vi, vj]", value="C[vi, vj + 1] + T.float32(1)"),
    "nested": NESTED + DIAGONAL.format(store="G[vi % 3 + 1, vj]",
                                       value="C[vi % 3 + 4, vj + 1] + T.float32(1)"),
    "bits": BITS + DIAGONAL.format(store="D[vi + 1, vj]", value="T.Cast('int32', C[vi, vj + 1])"),
    "bytes": BYTES + DIAGONAL.format(store="D[vi * 32 + vj * 4 + 32]",
                                     value="T.Cast('uint8', C[vi, vj + 1]) + T.uint8(1)"),
    "region": DIAGONAL.format(store="D = T.match_buffer(C[vi : vi + 2, vj : vj + 2], (2, 2))\n"
                                    "            D[1, 0]", value="C[vi, vj + 1] + T.float32(1)"),
    "two regions": DIAGONAL.format(
        store="D = T.match_buffer(C[vi + 1, vj : vj + 1], (1,))\n"
              "            G = T.match_buffer(C[vi, vj + 1 : vj + 2], (1,))\n            D[0]",
        value="G[0] + T.float32(1)"),
}  # fmt: skip


def program(body: str) -> ir.PrimFunc:
    found = bw.from_source(HEAD + body)
    assert isinstance(found, ir.PrimFunc)
    return found


def arguments() -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(3)
    return [rng.uniform(1, 9, shape).astype("float32") for shape in ((8, 8), (8, 8), (8,))]


def require_same(before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    bw.validate(after)
    first, second, native = arguments(), arguments(), arguments()
    bw.interpret(before, *first)
    bw.interpret(after, *second)
    bw.build(after)["f"](*native)
    for a, b, c in zip(first, second, native, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c, 1e-5)


REORDERING: dict[str, Step] = {
    "reorder": lambda s: s.reorder(*reversed(s.get_loops("P"))),
    "transform_block_layout": lambda s: s.transform_block_layout("P", lambda i, j: (j, i)),
    "parallel": lambda s: s.parallel(s.get_loops("P")[1]),
    "parallel outside": lambda s: s.parallel(s.get_loops("P")[0]),
    "vectorize": lambda s: s.vectorize(s.get_loops("P")[1]),
    "bind": lambda s: s.bind(s.get_loops("P")[0], "threadIdx.x"),
}


@pytest.mark.parametrize("step", REORDERING)
@pytest.mark.parametrize("name", DEPENDENT)
def test_iterations_that_depend_through_a_view_keep_their_order(name: str, step: str) -> None:
    schedule = bw.Schedule(program(DEPENDENT[name]))
    before = schedule.func
    with pytest.raises(bw.ScheduleError):
        REORDERING[step](schedule)
    assert schedule.func is before


@pytest.mark.parametrize("name", DEPENDENT)
def test_steps_that_keep_the_order_are_taken(name: str) -> None:
    func = program(DEPENDENT[name])
    schedule = bw.Schedule(func)
    i, j = schedule.get_loops("P")
    schedule.split(j, [None, 4])
    schedule.unroll(i)
    require_same(func, schedule.func)


WRITE_READ = """
    for i{loops}:
        with T.block("P"):
            {axes}
            {write}
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            E[vi] = {read} + T.float32(1)
"""
GRID = {"loops": ", j in T.grid({n}, 8)", "axes": 'vi, vj = T.axis.remap("SS", [i, j])'}


def handed_over(view: str, write: str, read: str, rows: int = 8, flat: bool = False) -> str:
    loops = " in range(64)" if flat else GRID["loops"].format(n=rows)
    axes = "vi = T.axis.spatial(64, i)" if flat else GRID["axes"]
    return view + WRITE_READ.format(loops=loops, axes=axes, write=write, read=read)


HANDED = {
    "same": handed_over(SAME, "D[vi, vj] = A[vi, vj] * T.float32(2)", "C[7 - vi, vi]"),
    "rows": handed_over(ROWS, "D[vi, vj] = A[vi, vj] * T.float32(2)", "C[7 - vi, vi]", rows=4),
    "flat": handed_over(FLAT, "D[vi] = A[vi // 8, vi % 8] * T.float32(2)", "C[7 - vi, vi]",
                        flat=True),
    "read flat": handed_over(FLAT, "C[vi, vj] = A[vi, vj] * T.float32(2)", "D[63 - vi * 8]"),
    "strided": handed_over(STRIDED, "D[vi, vj] = A[vi, vj] * T.float32(2)", "C[7 - vi, vi]",
                           rows=4),
    "bits": handed_over(BITS, "D[vi, vj] = T.reinterpret('int32', A[vi, vj] * T.float32(2))",
                        "C[7 - vi, vi]"),
}  # fmt: skip

STEPS: dict[str, Step] = {
    "parallel": lambda s: s.parallel(s.get_loops("P")[0]),
    "vectorize": lambda s: s.vectorize(s.get_loops("P")[-1]),
    "parallel reader": lambda s: s.parallel(s.get_loops("Q")[0]),
    "reorder": lambda s: s.reorder(*reversed(s.get_loops("P"))),
    "cache_write": lambda s: s.cache_write("P", 0, "global"),
    "cache_read": lambda s: s.cache_read("Q", 0, "global"),
    "reindex read": lambda s: s.reindex("Q", ("read", 0)),
    "reindex write": lambda s: s.reindex("P", ("write", 0)),
    "read_at": lambda s: s.read_at(s.get_loops("Q")[0], "Q", 0, "local"),
    "write_at": lambda s: s.write_at(s.get_loops("P")[0], "P", 0, "local"),
    "compute_at": lambda s: s.compute_at("P", s.get_loops("Q")[0]),
    "reverse_compute_at": lambda s: s.reverse_compute_at("Q", s.get_loops("P")[0]),
    "merge": lambda s: s.merge(s.get_loops("P")[0], s.get_loops("Q")[0]),
    "cache_inplace": lambda s: s.cache_inplace("P", 0, "local"),
    "compute_inline": lambda s: s.compute_inline("P"),
    "reverse_compute_inline": lambda s: s.reverse_compute_inline("Q"),
    "split": lambda s: s.split(s.get_loops("Q")[0], [2, 4]),
    "loop_partition": lambda s: s.loop_partition(s.get_loops("Q")[0], [3, 5]),
}
REFUSED = {"compute_inline", "reverse_compute_inline", "merge"}
"""Steps that are legal on no program here: C is the caller's, and Q reads it from the far end."""
PARTS = {(name, step) for name in ("rows", "strided") for step in ("cache_write", "cache_read")}
"""Of a buffer that is written in parts no copy of the whole is made."""
LEGAL = [
    "parallel",
    "cache_write",
    "cache_read",
    "reindex read",
    "parallel reader",
    "read_at",
    "write_at",
    "split",
    "loop_partition",
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", HANDED)
def test_values_handed_over_through_a_view_arrive(name: str, step: str) -> None:
    func = program(HANDED[name])
    schedule = bw.Schedule(func)
    try:
        STEPS[step](schedule)
    except bw.ScheduleError:
        return
    assert step not in REFUSED
    require_same(func, schedule.func)


@pytest.mark.parametrize("step", LEGAL)
@pytest.mark.parametrize("name", [n for n in HANDED if n != "bits"])
def test_legal_steps_on_views_are_taken(name: str, step: str) -> None:
    schedule = bw.Schedule(program(HANDED[name]))
    if (name, step) in PARTS and not (name == "rows" and step == "cache_write"):
        with pytest.raises(bw.ScheduleError) as caught:
            STEPS[step](schedule)
        assert caught.value.code == "BW323"
    else:
        STEPS[step](schedule)


@pytest.mark.parametrize("step", ["cache_write", "reindex write", "write_at", "cache_inplace"])
def test_a_buffer_with_a_second_name_is_not_replaced(step: str) -> None:
    schedule = bw.Schedule(program(HANDED["bits"]))
    with pytest.raises(bw.ScheduleError) as caught:
        STEPS[step](schedule)
    assert caught.value.code in ("BW368", "BW320")


SUMS = {
    "neighbour": SAME + """
    for i, k in T.grid(7, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi, 0] = T.float32(0)
            D[vi, 0] = D[vi, 0] + A[vi, vk] * C[vi + 1, 0]
""",
    "before the update": SAME + """
    for i, k in T.grid(7, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi + 1, 0] = C[vi, 0] * T.float32(0.5)
            D[vi + 1, 0] = D[vi + 1, 0] + A[vi, vk]
""",
}  # fmt: skip


@pytest.mark.parametrize("step", ["reorder", "parallel outside", "bind"])
@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_reads_what_it_writes_under_another_name(name: str, step: str) -> None:
    schedule = bw.Schedule(program(SUMS[name]))
    with pytest.raises(bw.ScheduleError):
        REORDERING[step](schedule)


def test_a_sum_through_two_names_is_a_sum() -> None:
    func = program(
        SAME
        + """
    for i, k in T.grid(8, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi, 0] = T.float32(0)
            C[vi, 0] = D[vi, 0] + A[vi, vk]
"""
    )
    schedule = bw.Schedule(func)
    i, k = schedule.get_loops("P")
    schedule.decompose_reduction("P", k)
    schedule.parallel(i)
    require_same(func, schedule.func)


def test_parts_of_a_sum_that_is_stored_through_a_view_keep_the_memory() -> None:
    func = program(
        """
    for i, k in T.grid(8, 8):
        with T.block("P"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.reads(A[vi, vk])
            T.writes(E[vi])
            M = T.match_buffer(E[vi], (1,), "float32", offset_factor=1)
            with T.init():
                M[0] = T.float32(0)
            M[0] = M[0] + A[vi, vk]
"""
    )
    steps: list[Step] = [
        lambda s: s.decompose_reduction("P", s.get_loops("P")[0]),
        lambda s: s.blockize(s.get_loops("P")[1]),
        lambda s: s.rfactor(s.get_loops("P")[1], 0),
    ]
    for step in steps:
        schedule = bw.Schedule(func)
        step(schedule)
        bw.validate(schedule.func)
        require_same(func, schedule.func)


PARTLY = {
    "vectors": "E[T.Ramp(vi, 2, 2)] = A[vi, 0:2]",
    "masked": "E.vstore([T.Ramp(vi * 2, 1, 2)], A[vi, 0:2], predicate=T.broadcast(vi < 2, 2))",
    "view": "T.reads(A[vi, 0:8])\n            T.writes(E[vi * 2 : vi * 2 + 2])\n"
            "            M = T.match_buffer(E[vi * 2 : vi * 2 + 2], (2,), offset_factor=1)\n"
            "            M[0] = A[vi, 0]",
}  # fmt: skip


@pytest.mark.parametrize("name", [*PARTLY, "whole vectors"])
def test_a_copy_is_stored_back_only_where_all_of_it_is_written(name: str) -> None:
    store = PARTLY.get(name, "E[T.Ramp(vi * 2, 1, 2)] = A[vi, 0:2]")
    func = program(
        f"""
    for o, i in T.grid(2, 2):
        with T.block("P"):
            vi = T.axis.spatial(4, o * 2 + i)
            {store}
"""
    )
    for step in (
        lambda s: s.write_at(s.get_loops("P")[0], "P", 0, "local"),
        lambda s: s.cache_write("P", 0, "local"),
    ):
        schedule = bw.Schedule(func)
        if name in PARTLY:
            with pytest.raises(bw.ScheduleError, match="BW323"):
                step(schedule)
        else:
            step(schedule)
            require_same(func, schedule.func)


def test_a_pipeline_does_not_run_ahead_of_what_a_view_reads() -> None:
    text = (
        SAME
        + """
    for i in range(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            D[vi, 0] = A[vi, 0] * T.float32(2)
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            E[vi] = C[7 - vi, 0] + T.float32(1)
"""
    )
    schedule = bw.Schedule(program(text))
    with pytest.raises(bw.ScheduleError):
        schedule.software_pipeline(schedule.get_loops("P")[0], [0, 1])


@pytest.mark.parametrize("name", [n for n in DEPENDENT if n not in ("bits", "bytes")])
def test_the_validator_sees_races_through_views(name: str) -> None:
    text = (
        DEPENDENT[name]
        .replace(
            "for i, j in T.grid(7, 7):", "for i in T.serial(7):\n      for j in T.parallel(7):", 1
        )
        .replace("D[vi + 1, vj]", "D[vi, vj]")
        .replace("C[vi + 1, vj]", "C[vi, vj]")
    )
    moved = {
        "flat": ("vi * 8 + vj + 8", "vi * 8 + vj"),
        "offset": ("C[vi, vj + 1]", "C[vi + 1, vj + 1]"),
        "nested": ("vi % 3 + 1, vj", "vi % 3, vj"),
        "region": ("D[1, 0]", "D[0, 0]"),
        "two regions": ("C[vi + 1, vj :", "C[vi, vj :"),
    }
    if name in moved:
        text = text.replace(*moved[name])
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(program(text))
    assert caught.value.code == "BW240"


@pytest.mark.parametrize("name", DEPENDENT)
def test_the_interpreter_sees_races_through_views(name: str) -> None:
    text = DEPENDENT[name].replace(
        "for i, j in T.grid(7, 7):", "for i in T.parallel(7):\n      for j in T.serial(7):", 1
    )
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.interpret(program(text), *arguments())
    assert caught.value.code == "BW756"


@pytest.mark.parametrize("name", [n for n in DEPENDENT if n not in ("bits", "bytes")])
def test_a_proof_takes_two_names_for_one_memory(name: str) -> None:
    right = program(DEPENDENT[name])
    wrong = program(DEPENDENT[name].replace("i, j in T.grid", "j, i in T.grid"))
    found = bw.verify(right, wrong)
    assert found.verdict != "proved"
    assert bw.verify(right, bw.Schedule(right).func).verdict != "refuted"


@pytest.mark.parametrize("name", ["same", "rows", "flat", "read flat", "strided"])
def test_right_steps_on_views_are_proved(name: str) -> None:
    func = program(HANDED[name])
    schedule = bw.Schedule(func)
    schedule.parallel(schedule.get_loops("P")[0])
    schedule.cache_read("P", 0, "global")
    assert bw.verify(func, schedule.func).verdict == "proved"


def test_what_was_written_through_a_view_counts_as_written() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), E: T.Buffer((8,), "float32")):
    B = T.alloc_buffer((8,), "float32")
    D = T.decl_buffer((2, 4), "float32", data=B.data)
    for i in range({n}):
        with T.block("P"):
            vi = T.axis.spatial({n}, i)
            D[vi // 4, vi % 4] = A[vi]
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            E[vi] = B[vi]
"""
    bw.validate(bw.from_source(text.format(n=8)))
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(bw.from_source(text.format(n=6)))
    assert caught.value.code == "BW235"


def test_pieces_bind_the_strides_of_their_views_each_anew() -> None:
    func = bw.from_source("""
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
    for j in range(4):
        with T.block("C"):
            vj = T.axis.spatial(4, j)
            part = T.match_buffer(
                A[0:8, vj * 2 : vj * 2 + 2], (8, 2), "float32", strides=("s0", "s1")
            )
            for i, k in T.grid(8, 2):
                C[i, vj * 2 + k] = part[7 - i, k]
""")
    sch = bw.Schedule(func, verify="full")
    sch.loop_partition(sch.get_loops("C")[0], [3])
    assert_same_meaning(func, sch.func, exact=True)
