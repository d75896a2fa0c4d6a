"""Products in the tile registers of AMX: schedules, their proofs and assembly, on any machine.

Where the machine has AMX, results are compared too; everywhere, those of the interpreter.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.intrin import TensorIntrin
from blockwright.script.compute import Program
from blockwright.strategies import CONSTANT_PARAMS, StrategyResult, apply_strategies
from blockwright.strategies.cpu.gemm_plan import GemmPlan
from blockwright.support import BuildError
from blockwright.target import Target
from tests.strategies.test_gemm_types import arrays, expected, product

AMX = Target("x86-64-v4+avx512vnni+avx512bf16+amx-tile+amx-int8+amx-bf16", num_threads=2)
BF16, U8S8 = ("bfloat16", "bfloat16", "float32"), ("uint8", "int8", "int32")
TYPES = {
    BF16: "tdpbf16ps",
    U8S8: "tdpbusd",
    ("int8", "int8", "int32"): "tdpbssd",
    ("int8", "uint8", "int32"): "tdpbsud",
    ("uint8", "uint8", "int32"): "tdpbuud",
}
SHAPES = {
    "whole tiles": (64, 64, 128),
    "whole tiles of one row of tiles": (16, 32, 64),
    "ragged rows": (33, 64, 64),
    "ragged columns": (32, 70, 64),
    "ragged reduction": (32, 32, 67),
    "ragged everywhere": (45, 50, 131),
    "few rows": (3, 48, 64),
    "few columns": (100, 20, 96),
    "one step": (64, 64, 5),
}


def scheduled(func: ir.PrimFunc, target: Target = AMX) -> StrategyResult:
    """The program by the GEMM strategy, with B constant, so that tiles need not be packed."""
    result = apply_strategies(func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)}), target)
    assert (result.strategy, result.note, result.faults) == ("gemm", "", ())
    return result


def instructions(func: ir.PrimFunc, target: Target = AMX) -> list[str]:
    return re.findall(r"^\s+(td\w+|tile\w+|ldtilecfg)\b", build(func, target).source("asm"), re.M)


def check(func: ir.PrimFunc, types: tuple[str, str, str], shape: tuple[int, int, int]) -> None:
    result = scheduled(func)
    a, w = arrays(types, *shape, transposed=True)
    want = expected(types, a, w, transposed=True)
    got = np.zeros_like(want)
    bw.interpret(result.func, a, w, got)
    np.testing.assert_array_equal(got, want)
    assert bw.verify(func, result.func).verdict == "proved"
    if AMX.is_host:
        got[:] = -1
        build(result.func, AMX)["product"](a, w, got)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("types", [BF16, U8S8], ids="-".join)
def test_products_of_any_size(types: tuple[str, str, str], shape: tuple[int, int, int]) -> None:
    check(product(types, *shape, transposed=True), types, shape)


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_each_pair_of_types_has_an_instruction(types: tuple[str, str, str]) -> None:
    """Four products in a step of the reduction, from two tiles of each operand."""
    func = product(types, 64, 64, 256, transposed=True)
    check(func, types, (64, 64, 256))
    found = instructions(scheduled(func).func)
    assert found.count(TYPES[types]) == 4
    assert found.count("tileloadd") == 4
    assert (found[0], found[-1]) == ("ldtilecfg", "tilerelease")


def test_whole_rows_are_loaded_from_where_they_are() -> None:
    """Others are gathered into tiles first: by the tasks, or before if several read a row."""
    whole, ragged = (product(BF16, m, 64, 128, transposed=True) for m in (64, 63))
    assert "tile_load_rows_bfloat16" in scheduled(whole).trace.as_python()
    assert "tile_load_rows_bfloat16" not in scheduled(ragged).trace.as_python()


def test_rows_of_several_axes_are_loaded_directly() -> None:
    """A batch of sequences: rows of a tile lie within one sequence."""
    p = Program("product")
    a = p.param("A", tuple(ir.const(n, "int64") for n in (3, 64, 96)), "bfloat16")
    w = p.param("W", tuple(ir.const(n, "int64") for n in (48, 96)), "bfloat16")
    extents = tuple(ir.const(n, "int64") for n in (3, 64, 48))
    f32 = ir.dtype_of("float32")
    func = p.finish(
        [
            p.reduce(
                "C",
                extents,
                (ir.const(96, "int64"),),
                lambda b, i, j, k: ir.mul(ir.cast_to(a[b, i, k], f32), ir.cast_to(w[j, k], f32)),
            )
        ]
    )
    result = scheduled(func)
    assert "tile_load_rows_bfloat16" in result.trace.as_python()
    assert bw.verify(func, result.func).verdict == "proved"
    x, y = arrays(BF16, 192, 48, 96, transposed=True)
    got = np.zeros((3, 64, 48), "float32")
    bw.interpret(result.func, x.reshape(3, 64, 96), y, got)
    want = expected(BF16, x, y, transposed=True).reshape(got.shape)
    np.testing.assert_array_equal(got, want)


def test_symbolic_rows() -> None:
    func = product(BF16, ir.Var("m", ir.dtype_of("int64")), 40, 64, transposed=True)
    result = scheduled(func)
    for rows in (1, 16, 33):
        a, w = arrays(BF16, rows, 40, 64, transposed=True)
        got = np.zeros((rows, 40), "float32")
        bw.interpret(result.func, a, w, got)
        np.testing.assert_array_equal(got, expected(BF16, a, w, transposed=True))


def test_panels_of_an_operand_that_is_no_constant_are_packed() -> None:
    func = product(BF16, 64, 64, 128, transposed=False)
    result = apply_strategies(func, AMX)
    assert result.strategy == "gemm"
    a, w = arrays(BF16, 64, 64, 128, transposed=False)
    got = np.zeros((64, 64), "float32")
    bw.interpret(result.func, a, w, got)
    np.testing.assert_array_equal(got, expected(BF16, a, w, transposed=False))


def test_plans_are_ranked_and_can_be_given() -> None:
    func = product(BF16, 256, 256, 512, transposed=True)
    result = scheduled(func)
    assert isinstance(result.plan, GemmPlan)
    (plan,) = result.plan.contractions
    assert (plan.dot, plan.tile.rows, plan.tile.columns) == ("mma_16x16x32_bf16", 32, 32)
    assert plan.blocking.depth is None


def image(channels: int, size: int, filters: int) -> ir.PrimFunc:
    """A 3 × 3 convolution of an image with channels last, without padding."""
    p = Program("product")
    x = p.param("X", tuple(ir.const(n, "int64") for n in (size, size, channels)), "bfloat16")
    w = p.param("W", tuple(ir.const(n, "int64") for n in (filters, 3, 3, channels)), "bfloat16")
    f32 = ir.dtype_of("float32")
    out = tuple(ir.const(n, "int64") for n in (size - 2, size - 2, filters))
    window = tuple(ir.const(n, "int64") for n in (3, 3, channels))

    def term(h: ir.Expr, v: ir.Expr, f: ir.Expr, i: ir.Expr, j: ir.Expr, c: ir.Expr) -> ir.Expr:
        return ir.mul(ir.cast_to(x[h + i, v + j, c], f32), ir.cast_to(w[f, i, j, c], f32))

    return p.finish([p.reduce("C", out, window, term)])


def test_a_task_gathers_its_rows_of_an_image() -> None:
    func = image(8, 9, 20)
    result = scheduled(func)
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, s).astype("bfloat16") for s in ((9, 9, 8), (20, 3, 3, 8)))
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (0, 1))
    want = np.einsum("hvcij,fijc->hvf", windows, w.astype(np.float64))
    got = np.zeros((7, 7, 20), "float32")
    bw.interpret(result.func, x, w, got)
    np.testing.assert_array_equal(got, want)
    assert bw.verify(func, result.func).verdict == "proved"
    if AMX.is_host:
        got[:] = -1
        build(result.func, AMX)["product"](x, w, got)
        np.testing.assert_array_equal(got, want)


KINDS = [
    *(f"tile_{kind}_{dtype}" for kind in ("zero", "store") for dtype in ("float32", "int32")),
    *(f"tile_{k}_{t}" for k in ("load", "load_rows") for t in ("bfloat16", "int8", "uint8")),
]


@pytest.mark.parametrize("name", KINDS)
def test_intrinsics_of_tiles_do_what_they_mean(name: str) -> None:
    assert TensorIntrin.get(name).verdict.verdict == "proved"


def refused(body: str, count: int = 512) -> BuildError:
    func = bw.from_source(f"""
@T.prim_func
def tiles(A: T.Buffer((16384,), "bfloat16"), B: T.Buffer((512,), "bfloat16"), n: T.int64):
    t = T.alloc_buffer(({count},), "bfloat16", scope="amx.tile")
    with T.block("root"):
        T.reads(A[0:16384], t[0:{count}])
        T.writes(B[0:512], t[0:{count}])
{body}
""")
    with pytest.raises(BuildError) as caught:
        build(func, AMX)
    assert caught.value.code == "BW637"
    assert "tile_load_*" in caught.value.help or "whole tiles" in caught.value.help
    return caught.value


LOAD = "        t[T.ramp(0, 1, 512)] = A[T.ramp(0, 1, 512)]\n"


def test_tiles_are_accessed_as_a_whole() -> None:
    cases: dict[str, Any] = {
        "not one tile": "        B[T.ramp(0, 1, 32)] = t[T.ramp(0, 1, 32)]",
        "index is not a constant": "        B[T.ramp(0, 1, 512)] = t[T.ramp(n % 2 * 512, 1, 512)]",
        "constant distance": "        t[T.ramp(0, 1, 512)] = A[T.ramp(0, 3, 512)]",
        "only zeros": "        t[T.ramp(0, 1, 512)] = T.broadcast(T.bfloat16(-0.0), 512)",
    }
    for message, body in cases.items():
        assert message in refused(LOAD + body, 1024).message


def test_contents_of_tiles_do_not_outlive_calls() -> None:
    """The function that is called may use the unit itself."""
    call = '        T.evaluate(T.call_extern("float32", "expf", T.float32(1)))\n'
    store = "        B[T.ramp(0, 1, 512)] = t[T.ramp(0, 1, 512)]"
    assert "a call in between" in refused(LOAD + call + store).message
    looped = LOAD + "        for i in range(2):\n"
    looped += "".join(f"    {line}\n" for line in (store + "\n" + call).splitlines())
    assert "a call in between" in refused(looped).message


def test_a_product_in_one_task_follows_one_in_several() -> None:
    """Tasks release the unit, which the function then configures anew for its own tiles."""
    p = Program("product")
    f32 = ir.dtype_of("float32")
    sizes, blocks = ((2048, 512, 512), (32, 32, 64)), list[ir.Stmt]()
    for number, shape in enumerate(sizes):
        m, n, k = (ir.const(size, "int64") for size in shape)
        a = p.param(f"A{number}", (m, k), "bfloat16")
        w = p.param(f"W{number}", (n, k), "bfloat16")

        def term(i: ir.Expr, j: ir.Expr, k: ir.Expr, a: Any = a, w: Any = w) -> ir.Expr:
            return ir.mul(ir.cast_to(a[i, k], f32), ir.cast_to(w[j, k], f32))

        blocks.append(p.reduce(f"C{number}", (m, n), (k,), term))
    func = p.finish(blocks)
    result = apply_strategies(func, AMX)
    assert (result.strategy, result.note) == ("gemm", "")
    code = instructions(result.func)
    assert code.count("ldtilecfg") > code.count("tilerelease") > 0
    if AMX.is_host:
        pairs = [arrays(BF16, *shape, transposed=True) for shape in sizes]
        out = [np.zeros(shape[:2], "float32") for shape in sizes]
        build(result.func, AMX)["product"](*pairs[0], *pairs[1], *out)
        for pair, got in zip(pairs, out, strict=True):
            np.testing.assert_array_equal(got, expected(BF16, *pair, transposed=True))


def test_there_are_eight_tiles() -> None:
    ninth = LOAD.replace("t[T.ramp(0,", "t[T.ramp(4096,")
    error = refused(LOAD + ninth + "        B[T.ramp(0, 1, 512)] = t[T.ramp(0, 1, 512)]", 9 * 512)
    assert "9216 bytes" in error.message
