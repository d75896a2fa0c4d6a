"""Schedules with tile sizes as symbols: one trace, every size.

The trace is applied once with symbols, then numbers are put in; the same trace applied with the
numbers and the original must compute the same. Tile sizes need not divide the extents: the
outermost loop runs `ceildiv` times, and predicates cut what lies beyond.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from blockwright import ir
from blockwright.schedule import Schedule
from blockwright.script.ir import from_source
from blockwright.support import ScheduleError
from blockwright.testing.check import assert_same_meaning

Factor = int | ir.Var
LIMITS = {"tir_var_lower_bound": 1, "tir_var_upper_bound": 16}


def program(text: str) -> ir.PrimFunc:
    found = from_source(text)
    assert isinstance(found, ir.PrimFunc)
    return found


GEMM = program("""
@T.prim_func
def gemm(
    A: T.Buffer((30, 26), "float32"),
    B: T.Buffer((26, 22), "float32"),
    C: T.Buffer((30, 22), "float32"),
):
    for i, j, k in T.grid(30, 22, 26):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
""")


CONVOLUTION = program("""
@T.prim_func
def convolution(
    X: T.Buffer((3, 9, 11), "float32"),
    W: T.Buffer((5, 3, 3, 3), "float32"),
    Y: T.Buffer((5, 9, 11), "float32"),
):
    P = T.alloc_buffer((3, 11, 13), "float32")
    for c, h, w in T.grid(3, 11, 13):
        with T.block("pad"):
            vc, vh, vw = T.axis.remap("SSS", [c, h, w])
            P[vc, vh, vw] = T.if_then_else(
                1 <= vh and vh < 10 and 1 <= vw and vw < 12, X[vc, vh - 1, vw - 1], 0.0
            )
    for f, h, w, c, r, s in T.grid(5, 9, 11, 3, 3, 3):
        with T.block("conv"):
            vf, vh, vw, vc, vr, vs = T.axis.remap("SSSRRR", [f, h, w, c, r, s])
            with T.init():
                Y[vf, vh, vw] = 0.0
            Y[vf, vh, vw] = Y[vf, vh, vw] + P[vc, vh + vr, vw + vs] * W[vf, vc, vr, vs]
""")


def with_symbols(func: ir.PrimFunc, names: list[str]) -> ir.PrimFunc:
    """The program with further scalar parameters, each between 1 and 16."""
    symbols = tuple(ir.Var(name, ir.dtype_of("int32")) for name in names)
    attrs = {key: dict.fromkeys(names, value) for key, value in LIMITS.items()}
    return func.replace(params=(*func.params, *symbols), attrs={**func.attrs, **attrs})


def with_numbers(func: ir.PrimFunc, numbers: dict[str, int]) -> ir.PrimFunc:
    """The program with its scalar parameters fixed."""
    fixed = {p: ir.const(numbers[p.name], p.type) for p in func.params if p.name in numbers}
    params = tuple(p for p in func.params if p not in fixed)
    attrs = {k: v for k, v in func.attrs.items() if k not in LIMITS}
    return func.replace(params=params, body=ir.substitute(func.body, fixed), attrs=attrs)


def multi_level_gemm(sch: Schedule, sizes: dict[str, Factor]) -> None:
    """Three levels of tiles in space, two in the reduction, operands and result staged."""
    block = sch.get_block("C")
    copy_out = sch.cache_write(block, 0, "local")
    i, j, k = sch.get_loops(block)
    i0, i1, i2 = sch.split(i, [None, sizes["i1"], sizes["i2"]])
    j0, j1, j2 = sch.split(j, [None, sizes["j1"], sizes["j2"]])
    k0, k1 = sch.split(k, [None, sizes["k1"]])
    sch.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    tile = sch.fuse(i0, j0)
    sch.reverse_compute_at(copy_out, j1)
    sch.compute_at(sch.cache_read(block, 0, "global"), k0)
    sch.compute_at(sch.cache_read(block, 1, "global"), tile)
    start = sch.decompose_reduction(block, k0)
    _, inner = sch.split(j2, [None, 4])
    sch.vectorize(inner)
    _, first = sch.split(sch.get_loops(start)[-1], [None, 2])
    sch.unroll(first)
    sch.parallel(tile)


def tiled_convolution(sch: Schedule, sizes: dict[str, Factor]) -> None:
    """Tiles of rows and columns; the padded input is computed per tile, with its halo."""
    block = sch.get_block("conv")
    copy_out = sch.cache_write(block, 0, "local")
    f, h, w, c, r, s = sch.get_loops(block)
    f0, f1 = sch.split(f, [None, sizes["tf"]])
    h0, h1 = sch.split(h, [None, sizes["th"]])
    w0, w1 = sch.split(w, [None, sizes["tw"]])
    c0, c1 = sch.split(c, [None, sizes["tc"]])
    sch.reorder(h0, w0, f0, c0, r, s, c1, h1, w1, f1)
    tile = sch.fuse(h0, w0)
    sch.reverse_compute_at(copy_out, f0)
    sch.compute_at(sch.get_block("pad"), tile)
    sch.compute_at(sch.cache_read(block, 1, "global"), c0)
    sch.decompose_reduction(block, c0)
    sch.parallel(tile)


Case = tuple[ir.PrimFunc, Callable[[Schedule, dict[str, Factor]], None], list[str]]
CASES: dict[str, Case] = {
    "gemm": (GEMM, multi_level_gemm, ["i1", "i2", "j1", "j2", "k1"]),
    "convolution": (CONVOLUTION, tiled_convolution, ["tf", "th", "tw", "tc"]),
}
SIZES = {
    "gemm": [(1, 1, 1, 1, 1), (2, 3, 4, 5, 6), (5, 3, 2, 11, 13), (16, 16, 16, 16, 16)],
    "convolution": [(1, 1, 1, 1), (2, 3, 4, 2), (5, 9, 11, 3), (16, 16, 16, 16)],
}


@pytest.fixture(scope="module", params=list(CASES))
def scheduled(request: pytest.FixtureRequest) -> tuple[str, ir.PrimFunc]:
    """A case with its trace applied to symbols."""
    original, steps, names = CASES[request.param]
    sch = Schedule(with_symbols(original, names), verify="full")
    steps(sch, {p.name: p for p in sch.func.params if p.name in names})
    return request.param, sch.func


def test_one_trace_serves_every_tile_size(scheduled: tuple[str, ir.PrimFunc]) -> None:
    name, parametric = scheduled
    original, steps, names = CASES[name]
    for sizes in SIZES[name]:
        numbers = dict(zip(names, sizes, strict=True))
        assert_same_meaning(original, with_numbers(parametric, numbers))
        sch = Schedule(original)
        steps(sch, dict(numbers))
        assert_same_meaning(original, sch.func)


def test_the_parametric_program_runs_with_sizes_as_arguments(
    scheduled: tuple[str, ir.PrimFunc],
) -> None:
    name, parametric = scheduled
    original, _, names = CASES[name]
    sizes = dict(zip(names, SIZES[name][1], strict=True))
    assert_same_meaning(with_symbols(original, names), parametric, sizes=sizes)


def test_the_parametric_program_prints_and_parses_back(
    scheduled: tuple[str, ir.PrimFunc],
) -> None:
    parametric = scheduled[1]
    ir.assert_structural_equal(from_source(parametric.script()), parametric)


# ------------------------------------------------------------------------------ divisibility
DIVIDED = """
@T.prim_func
def main(a: T.handle, b: T.handle, t: T.int64, n: T.int64):
    T.func_attr({"tir_var_lower_bound": {"t": 1, "n": 1}})
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    assert n % t == 0, "t divides n"
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] + 1.0
"""


@pytest.mark.parametrize(
    "statement", ['assert n % t == 0, "t divides n"', "T.evaluate(T.assume(n % t == 0))"]
)
def test_a_stated_divisor_needs_no_predicate(statement: str) -> None:
    sch = Schedule(program(DIVIDED.replace('assert n % t == 0, "t divides n"', statement)))
    t = sch.func.params[2]
    (i,) = sch.get_loops(sch.get_block("B"))
    outer, inner = sch.split(i, [None, t])
    assert "T.where" not in sch.func.script()
    sch.fuse(outer, inner)
    assert "for i_0_i_1_fused in range(n):" in sch.func.script()


def test_a_stated_divisor_of_a_number_needs_no_predicate() -> None:
    text = DIVIDED.replace(", n: T.int64", "").replace(', "n": 1', "")
    text = text.replace("n %", "24 %").replace("(n", "(24").replace("t: T.int64", "t: T.int32")
    text_program = program(text)
    sch = Schedule(text_program)
    t = sch.func.params[2]
    (i,) = sch.get_loops(sch.get_block("B"))
    sch.split(i, [None, t], disable_predication=True)
    for size in (1, 2, 3, 8, 24):
        assert_same_meaning(text_program, sch.func, sizes={"t": size})


def test_without_the_statement_the_predicate_stays() -> None:
    text = "\n".join(line for line in DIVIDED.splitlines() if "assert" not in line)
    sch = Schedule(program(text))
    (i,) = sch.get_loops(sch.get_block("B"))
    t = sch.func.params[2]
    with pytest.raises(ScheduleError, match="do not provably divide") as caught:
        sch.split(i, [None, t], disable_predication=True)
    assert caught.value.code == "BW318"
    sch.split(i, [None, t])
    assert "T.where" in sch.func.script()


def test_a_factor_must_be_known_to_be_positive() -> None:
    sch = Schedule(program(DIVIDED.replace('{"t": 1, "n": 1}', '{"t": 0, "n": 1}')))
    (i,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError, match="not provably positive") as caught:
        sch.split(i, [None, sch.func.params[2]])
    assert caught.value.code == "BW318"


def test_a_factor_of_a_wider_type_needs_an_upper_bound() -> None:
    text = DIVIDED.replace("n: T.int64", "n: T.int32")
    sch = Schedule(program(text))
    (i,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError, match="may be too large") as caught:
        sch.split(i, [None, sch.func.params[2]])
    assert caught.value.code == "BW318"
    bounded = text.replace("T.func_attr({", 'T.func_attr({"tir_var_upper_bound": {"t": 64}, ')
    sch = Schedule(program(bounded))
    (i,) = sch.get_loops(sch.get_block("B"))
    sch.split(i, [None, sch.func.params[2]])


def test_a_factor_must_be_a_size_of_the_program() -> None:
    sch = Schedule(program(DIVIDED))
    (i,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(ScheduleError, match="is not a size symbol of the program") as caught:
        sch.split(i, [None, ir.Var("u", ir.dtype_of("int64"))])
    assert caught.value.code == "BW304"
