"""`sch.tile`: the notation, what it is made of, and how it explains its refusals."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.schedule import Schedule, ScheduleError
from blockwright.schedule.compose.notation import Group, read_notation
from blockwright.script.ir import from_source
from blockwright.testing.check import assert_same_meaning

MATMUL = """
@T.prim_func
def main(A: T.Buffer((64, 32), "float32"), B: T.Buffer((32, 48), "float32"),
         C: T.Buffer((64, 48), "float32")):
    for i, j, k in T.grid(64, 48, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""
SYMBOLIC = """
@T.prim_func
def main(a: T.handle, b: T.handle, m: T.int64):
    T.func_attr({"tir_var_lower_bound": {"m": 1}, "tir_var_upper_bound": {"m": 4}})
    n = T.int64()
    A = T.match_buffer(a, (n, 6), "float32")
    B = T.match_buffer(b, (n, 6), "float32")
    for i, j in T.grid(n, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
"""


def program(source: str = MATMUL) -> ir.PrimFunc:
    parsed = from_source(source)
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


@pytest.fixture
def sch() -> Schedule:
    return Schedule(program(), verify="full")


def nest(sch: Schedule, block: str = "C") -> list[tuple[str, int | None]]:
    """Names and extents of the loops around a block."""
    found = [sch.get(loop) for loop in sch.get_loops(block)]
    return [(loop.loop_var.name, ir.const_int(loop.extent)) for loop in found]


def test_the_threads_matmul_in_one_line(sch: Schedule) -> None:
    axes = sch.tile("C", "i j k -> i0 j0 k0 i1 j1 k1", i1=32, j1=16, k1=4)
    assert nest(sch) == [("i0", 2), ("j0", 3), ("k0", 8), ("i1", 32), ("j1", 16), ("k1", 4)]
    assert axes.names == ("i0", "j0", "k0", "i1", "j1", "k1")
    assert [sch.get(a) for a in axes] == [sch.get(a) for a in sch.get_loops("C")]
    assert sch.get(axes.j0) is sch.get(axes["j0"]) is sch.get(sch.axis("C", "j0"))
    assert_same_meaning(program(), sch.func, exact=True)


@pytest.mark.parametrize(
    ("notation", "sizes", "wanted"),
    [
        # several levels; the factor without a size may stand anywhere
        ("i -> i0 i1 i2", {"i0": 2, "i2": 4},
         [("i0", 2), ("i1", 8), ("i2", 4), ("j", 48), ("k", 32)]),
        # a sole axis may have factors of any name
        ("i -> outer inner", {"inner": 16}, [("outer", 4), ("inner", 16), ("j", 48), ("k", 32)]),
        # sizes that do not divide
        ("i j -> i0 j0 i1 j1", {"i1": 10, "j1": 7},
         [("i0", 7), ("j0", 7), ("i1", 10), ("j1", 7), ("k", 32)]),
        # iterators name axes too, and an axis may only be renamed
        ("vi vk -> vi0 vi1 depth=(vk)", {"vi1": 8},
         [("vi0", 8), ("vi1", 8), ("j", 48), ("depth", 32)]),
        # only the order changes
        ("i j k -> k j i", {}, [("k", 32), ("j", 48), ("i", 64)]),
        # what is not named goes where the dots are
        ("i -> ... i0 i1", {"i1": 4}, [("j", 48), ("k", 32), ("i0", 16), ("i1", 4)]),
        # factors with names of their own
        ("i=(bx tx) j=(by ty) -> bx by tx ty", {"tx": 16, "ty": 8},
         [("bx", 4), ("by", 6), ("tx", 16), ("ty", 8), ("k", 32)]),
        # fused first, with a name and without
        ("f=(i j) -> f0 f1", {"f1": 128}, [("f0", 24), ("f1", 128), ("k", 32)]),
        ("(i j) -> a b", {"b": 64}, [("a", 48), ("b", 64), ("k", 32)]),
        # fused although another loop stands between
        ("(i k) j -> a b j", {"b": 8}, [("a", 256), ("b", 8), ("j", 48)]),
        # fused in the end
        ("i j -> (i0 j0) i1 j1", {"i1": 16, "j1": 16},
         [("i0_j0_fused", 12), ("i1", 16), ("j1", 16), ("k", 32)]),
        ("i j -> g=(i0 j0) i1 j1", {"i1": 16, "j1": 16},
         [("g", 12), ("i1", 16), ("j1", 16), ("k", 32)]),
    ],
)  # fmt: skip
def test_notation(
    sch: Schedule, notation: str, sizes: dict[str, int], wanted: list[tuple[str, int]]
) -> None:
    sch.tile("C", notation, **sizes)
    assert nest(sch) == wanted
    assert_same_meaning(program(), sch.func, exact=True)
    again = Schedule(program())
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_levels_are_added_one_after_the_other(sch: Schedule) -> None:
    sch.tile("C", "i j -> i0 j0 i1 j1", i1=16, j1=12)
    sch.tile("C", "i1 j1 -> i2 j2 i3 j3", i3=4, j3=3)
    wanted = [("i0", 4), ("j0", 4), ("i2", 4), ("j2", 4), ("i3", 4), ("j3", 3), ("k", 32)]
    assert nest(sch) == wanted


def test_sizes_may_be_symbols_and_drawn_numbers() -> None:
    sch = Schedule(program(SYMBOLIC), verify="full")
    width = sch.sample_categorical([2, 3], [0.5, 0.5], decision=1)
    sch.tile("B", "i j -> i0 j0 i1 j1", i1=sch.symbol("m"), j1=width)
    assert [name for name, _ in nest(sch, "B")] == ["i0", "j0", "i1", "j1"]
    for m in (1, 3):
        assert_same_meaning(program(SYMBOLIC), sch.func, sizes={"n": 5, "m": m}, exact=True)
    again = Schedule(program(SYMBOLIC))
    exec(sch.trace.as_python(), {"sch": again})
    ir.assert_structural_equal(again.func, sch.func)


def test_a_tile_shows_the_primitives_it_used(sch: Schedule) -> None:
    sch.tile("C", "i j -> i0 j0 i1 j1", i1=32, j1=16)
    assert sch.trace.as_python().splitlines() == [
        "# sch.tile('C', 'i j -> i0 j0 i1 j1', i1=32, j1=16):",
        "b0 = sch.get_block('C')",
        "l1, l2, l3 = sch.get_loops(b0)",
        "l4, l5 = sch.split(l1, [None, 32], names=['i0', 'i1'])",
        "l6, l7 = sch.split(l2, [None, 16], names=['j0', 'j1'])",
        "sch.reorder(l4, l6, l5, l7)",
        "# end of tile",
    ]


@pytest.mark.parametrize(
    ("notation", "sizes", "code", "words", "remedy"),
    [
        ("i j k", {}, "BW304", "expected exactly one '->'", "write it like"),
        ("-> i", {}, "BW304", "one side is empty", "write it like"),
        ("i -> i0 & i1", {}, "BW304", "unexpected character '&'", "write it like"),
        ("i -> (i0 i1", {}, "BW304", r"a '\(' is never closed", "write it like"),
        ("i -> i0 i0", {}, "BW304", "i0 occurs twice on one side", "write it like"),
        ("i= -> i0", {}, "BW304", "'i=' is not followed by", "write it like"),
        ("... -> i0", {}, "BW304", "'...' is not allowed on the left", "write it like"),
        ("x -> x0 x1", {}, "BW302", "block C has no axis 'x'", "its axes: i, j, k, vi, vj, vk"),
        (
            "i j -> i0 i1 j y",
            {},
            "BW304",
            "y belongs to no axis",
            "start its name with the name of its axis",
        ),
        ("i j -> i0 i1", {"i1": 2}, "BW304", "axis j is missing on the right", "every axis"),
        (
            "i -> i0 i1",
            {},
            "BW304",
            r"axis i = i0 \* i1: the sizes of i0, i1 are missing",
            "with i1=… the call leaves only i0",
        ),
        ("i -> i0 i1", {"i1": 4, "i2": 2}, "BW304", "i2= is not the size of a factor", "i0 i1"),
        (
            "i -> i0 i1",
            {"i0": 2, "i1": 4},
            "BW318",
            r"axis i = \(i0=2\) \* \(i1=4\) is 8, the axis has 64",
            "i0 (it becomes 16) or i1 (it becomes 32)",
        ),
        ("i=(a b) -> a", {"a": 4}, "BW304", "b of axis i is missing on the right", "every axis"),
        ("i vi -> i vi", {}, "BW304", "i and vi are the same loop", "name each loop once"),
        ("(i) (j) -> a b", {}, "BW304", "only one fused loop may be unnamed", "f=(i j)"),
    ],
)
def test_errors_name_the_axis_and_the_remedy(
    sch: Schedule, notation: str, sizes: dict[str, int], code: str, words: str, remedy: str
) -> None:
    before, steps = sch.func, len(sch.trace)
    with pytest.raises(ScheduleError, match=f"tile: .*{words}") as caught:
        sch.tile("C", notation, **sizes)
    assert caught.value.code == code
    assert remedy in str(caught.value)
    assert sch.func is before
    assert len(sch.trace) == steps


def test_a_tile_that_fails_half_way_leaves_nothing_behind(sch: Schedule) -> None:
    i, j, k = sch.get_loops("C")
    sch.parallel(j)
    before = sch.func
    with pytest.raises(ScheduleError, match=r"tile: .*axis j: split: loop j is parallel already"):
        sch.tile("C", "i j -> i0 j0 i1 j1", i1=4, j1=4)
    assert sch.func is before
    assert all(sch.alive(loop) for loop in (i, j, k))
    sch.tile("C", "i -> i0 i1", i1=4)


def test_axes_are_found_by_name(sch: Schedule) -> None:
    axes = sch.loops("C")
    i, j, _ = axes
    assert axes.names == ("i", "j", "k")
    assert axes["vj"] == axes.j == j
    assert "vk" in axes
    assert "x" not in axes
    assert not hasattr(axes, "x")
    assert len(axes) == 3
    sch.split(i, [None, 8])
    sch.split(j, [None, 8], names=["k", "j1"])
    with pytest.raises(ScheduleError, match="several loops around block C are") as caught:
        sch.axis("C", "k")
    assert caught.value.code == "BW303"
    with pytest.raises(ScheduleError, match="block C has no axis 'vi'") as caught:
        sch.axis("C", "vi")  # bound to two loops by now
    assert caught.value.code == "BW302"


def test_a_notation_is_read_into_items() -> None:
    found = read_notation("f=(i j) k -> f0 (f1 k0) ... k1")
    assert found.left == (Group("f", ("i", "j")), "k")
    assert found.right == ("f0", Group(None, ("f1", "k0")), "...", "k1")


@pytest.mark.parametrize(
    ("names", "words"), [(["a"], "1 names for 2 loops"), (["a", "b c"], "'b c' is not a name")]
)
def test_names_of_split_loops_are_checked(sch: Schedule, names: list[str], words: str) -> None:
    with pytest.raises(ScheduleError, match=words) as caught:
        sch.split(sch.axis("C", "i"), [None, 8], names=names)
    assert caught.value.code == "BW304"
