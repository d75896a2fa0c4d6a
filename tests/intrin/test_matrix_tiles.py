"""Products of small matrices (AMX, SMMLA): meaning, layout, assembly, and AMX where it is there."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.build import module as building
from blockwright.intrin.hardware import DOT_PRODUCTS, MATRIX_PRODUCTS, MatrixProduct
from blockwright.runtime.cpu import has_feature, request_tiles
from blockwright.support import BuildError
from blockwright.target import Target

INSTRUCTIONS = {
    "mma_16x16x64_s8s8": "tdpbssd", "mma_16x16x64_s8u8": "tdpbsud", "mma_16x16x64_u8s8": "tdpbusd",
    "mma_16x16x64_u8u8": "tdpbuud", "mma_16x16x32_bf16": "tdpbf16ps",
    "mma_2x2x8_s8s8": "smmla", "mma_2x2x8_u8u8": "ummla", "mma_2x2x8_u8s8": "usmmla",
    "mma_2x2x4_bf16_odd": "bfmmla",
}  # fmt: skip
SUMS = [name for name, row in MATRIX_PRODUCTS.items() if not row.odd]
"""Rows that compute a sum; the others are tested in test_round_to_odd.py."""
SMALL = [name for name in SUMS if MATRIX_PRODUCTS[name].tile < 64]


def in_registers_of_amx(row: MatrixProduct) -> ir.PrimFunc:
    """One product of tile registers, which are loaded from and stored to memory."""
    wide = row.ratio * 256
    return bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer(({wide},), "{row.a}"), B: T.Buffer(({wide},), "{row.b}"),
            C: T.Buffer((256,), "{row.accumulator}")):
    a = T.alloc_buffer(({wide},), "{row.a}", scope="amx.tile")
    b = T.alloc_buffer(({wide},), "{row.b}", scope="amx.tile")
    c = T.alloc_buffer((256,), "{row.accumulator}", scope="amx.tile")
    with T.block("C"):
        T.reads(A[0:{wide}], B[0:{wide}], C[0:256], a[0:{wide}],
                b[0:{wide}], c[0:256])
        T.writes(C[0:256], a[0:{wide}], b[0:{wide}], c[0:256])
        a[T.ramp(0, 1, {wide})] = A[T.ramp(0, 1, {wide})]
        b[T.ramp(0, 1, {wide})] = B[T.ramp(0, 1, {wide})]
        c[T.ramp(0, 1, 256)] = C[T.ramp(0, 1, 256)]
        c[T.ramp(0, 1, 256)] = T.{row.name}(
            c[T.ramp(0, 1, 256)], a[T.ramp(0, 1, {wide})],
            b[T.ramp(0, 1, {wide})])
        C[T.ramp(0, 1, 256)] = c[T.ramp(0, 1, 256)]
""")


def operation(row: MatrixProduct, matrices: int = 1) -> ir.PrimFunc:
    if row.in_tiles:
        return in_registers_of_amx(row)
    return in_vectors(row, matrices)


def in_vectors(row: MatrixProduct, matrices: int = 1) -> ir.PrimFunc:
    lanes, wide = row.tile * matrices, row.tile * row.ratio * matrices
    return bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer(({wide},), "{row.a}"), B: T.Buffer(({wide},), "{row.b}"),
            C: T.Buffer(({lanes},), "{row.accumulator}")):
    with T.block("C"):
        T.reads(A[0:{wide}], B[0:{wide}], C[0:{lanes}])
        T.writes(C[0:{lanes}])
        C[T.ramp(0, 1, {lanes})] = T.{row.name}(
            C[T.ramp(0, 1, {lanes})], A[T.ramp(0, 1, {wide})], B[T.ramp(0, 1, {wide})])
""")


def target_of(row: MatrixProduct) -> Target:
    ((form,),) = row.forms.values()
    return Target("+".join(("x86-64-v4" if row.in_tiles else "aarch64", *sorted(form.features))))


def matrices(row: MatrixProduct, m: int, n: int, k: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    if not row.exact:
        a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
        return a, b, rng.standard_normal((m, n)).astype(np.float32)
    a, b = (
        rng.integers(info.min, info.max, shape, kind, endpoint=True)
        for kind, shape in ((row.a, (m, k)), (row.b, (k, n)))
        for info in (np.iinfo(kind),)
    )
    a[0], b[:, 0] = np.iinfo(row.a).max, np.iinfo(row.b).min
    return a, b, rng.integers(-(2**31), 2**31, (m, n)).astype(np.int32)


def reference(row: MatrixProduct, a: Any, b: Any, c: Any) -> Any:
    """Exact modulo 2**32; bfloat16: sums of even and of odd positions, rounded at each step."""
    if row.exact:
        total = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
        return (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
    chains = np.zeros((2, *c.shape), np.float32)
    for k in range(a.shape[1]):  # a product of two bfloat16 is exact in float64
        term = np.outer(a[:, k].astype(np.float64), b[k].astype(np.float64))
        chains[k % 2] = (chains[k % 2] + term).astype(np.float32)
    return c + (chains[0] + chains[1])


def in_registers(row: MatrixProduct, b: Any) -> Any:
    """B as the instruction reads it: [k / group][n][group]."""
    return np.ascontiguousarray(b.reshape(row.groups, row.group, row.n).transpose(0, 2, 1))


def test_every_row_has_an_instruction() -> None:
    assert INSTRUCTIONS.keys() == MATRIX_PRODUCTS.keys()


@pytest.mark.parametrize("name", SUMS)
def test_the_interpreter_computes_the_meaning(name: str) -> None:
    row = MATRIX_PRODUCTS[name]
    a, b, c = matrices(row, row.m, row.n, row.depth)
    got = c.copy().ravel()
    bw.interpret(operation(row), a.ravel(), in_registers(row, b).ravel(), got)
    np.testing.assert_array_equal(got.reshape(c.shape), reference(row, a, b, c))


@pytest.mark.parametrize("name", SMALL)
def test_small_matrices_run_without_the_instruction(name: str) -> None:
    """Two matrices in longer vectors."""
    row = MATRIX_PRODUCTS[name]
    parts = [matrices(row, row.m, row.n, row.depth) for _ in range(2)]
    a, c = (np.concatenate([part[k].ravel() for part in parts]) for k in (0, 2))
    b = np.concatenate([in_registers(row, part[1]).ravel() for part in parts])
    build(operation(row, 2))["product"](a, b, c)
    want = [reference(row, *part).ravel() for part in parts]
    np.testing.assert_array_equal(c, np.concatenate(want))


@pytest.mark.parametrize("name", MATRIX_PRODUCTS)
def test_an_operation_is_one_instruction(name: str) -> None:
    row = MATRIX_PRODUCTS[name]
    text = build(operation(row), target_of(row)).source("asm")
    found = re.findall(r"^\s+(td\w+|\w*mmla|tile\w+|ldtilecfg)\b", text, re.MULTILINE)
    instruction = INSTRUCTIONS[name]
    if row.tile == 256:
        loads = ["tileloadd"] * 3
        assert found == ["ldtilecfg", *loads, instruction, "tilestored", "tilerelease"]
    else:
        assert found == [instruction]


@pytest.mark.parametrize(
    ("name", "instruction"),
    [("dot4_s8s8", "sdot"), ("dot4_u8u8", "udot"), ("dot4_u8s8", "usdot"), ("dot4_s8u8", "usdot")],
)
def test_dot_products_of_neon(name: str, instruction: str) -> None:
    """Four lanes to a register: eight lanes are two instructions, and nothing widens elements."""
    dot = DOT_PRODUCTS[name]
    func = bw.from_source(f"""
@T.prim_func
def dot(A: T.Buffer((32,), "{dot.a}"), B: T.Buffer((32,), "{dot.b}"),
        C: T.Buffer((8,), "int32")):
    with T.block("C"):
        T.reads(A[0:32], B[0:32], C[0:8])
        T.writes(C[0:8])
        C[T.ramp(0, 1, 8)] = T.{name}(
            C[T.ramp(0, 1, 8)], A[T.ramp(0, 1, 32)], B[T.ramp(0, 1, 32)])
""")
    text = build(func, "aarch64+dotprod+i8mm").source("asm")
    assert re.findall(r"^\s+([us]+dot)\b", text, re.MULTILINE) == [instruction] * 2
    assert not re.search(r"^\s+([su]xtl|[su]shll|[su]mull)\b", text, re.MULTILINE)


def test_other_targets_have_no_tile_registers() -> None:
    with pytest.raises(bw.BlockwrightError, match=r"amx\.tile") as caught:
        build(operation(MATRIX_PRODUCTS["mma_16x16x64_s8s8"]), "x86-64-v4")
    assert caught.value.code == "BW230"


def test_products_of_tiles_do_not_take_vectors_from_memory() -> None:
    row = MATRIX_PRODUCTS["mma_16x16x64_s8s8"]
    with pytest.raises(BuildError, match="tile registers, not vectors") as caught:
        build(in_vectors(row), target_of(row))
    assert caught.value.code == "BW637"


def test_parts_of_a_matrix_are_refused() -> None:
    text = operation(MATRIX_PRODUCTS["mma_2x2x8_s8s8"]).script()
    for old, new in (("1, 4)", "1, 6)"), ("1, 16)", "1, 24)")):
        text = text.replace(old, new)
    with pytest.raises(bw.BlockwrightError, match="6 lanes, not a multiple of 4"):
        bw.build(bw.from_source(text))


def test_code_with_tiles_is_loaded_with_permission_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose first tile instruction is not permitted would be killed."""
    module = build(operation(MATRIX_PRODUCTS["mma_16x16x64_s8s8"]), "x86-64-v4+amx-tile+amx-int8")
    monkeypatch.setattr(Target, "is_host", True)  # of a machine that has AMX
    monkeypatch.setattr(building, "request_tiles", lambda: False)
    with pytest.raises(BuildError, match="use the AMX tiles") as caught:
        module.loaded()
    assert caught.value.code == "BW604"


@pytest.mark.parametrize("name", [name for name in SUMS if MATRIX_PRODUCTS[name].in_tiles])
def test_the_instruction_computes_the_meaning(name: str) -> None:
    row = MATRIX_PRODUCTS[name]
    if not target_of(row).is_host:
        pytest.skip("this machine does not have it")
    a, b, c = matrices(row, row.m, row.n, row.depth)
    got = c.copy().ravel()
    build(operation(row))["product"](a.ravel(), in_registers(row, b).ravel(), got)
    np.testing.assert_array_equal(got.reshape(c.shape), reference(row, a, b, c))


def test_machines_without_amx_grant_no_tiles() -> None:
    if has_feature("amx-tile"):
        pytest.skip("this machine has AMX")
    assert not request_tiles()


def product(row: MatrixProduct, m: int, n: int, k: int) -> ir.PrimFunc:
    cast = f'T.Cast("{row.accumulator}", '
    return bw.from_source(f"""
@T.prim_func
def product(A: T.Buffer(({m}, {k}), "{row.a}"), B: T.Buffer(({k}, {n}), "{row.b}"),
            C: T.Buffer(({m}, {n}), "{row.accumulator}")):
    for i, j, k in T.grid({m}, {n}, {k}):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = {cast}0)
            C[vi, vj] = C[vi, vj] + {cast}A[vi, vk]) * {cast}B[vk, vj])
""")


def tensorized(row: MatrixProduct, func: ir.PrimFunc) -> bw.Schedule:
    """Operands packed into tiles, sums in a tile of their own."""
    m, n, depth = row.m, row.n, row.depth
    sch = bw.Schedule(func)
    block = sch.get_block("C")
    sch.cache_read(block, 0, "global")
    sch.cache_read(block, 1, "global")
    sums = sch.cache_write(block, 0, "local")

    def of_a(i: Any, k: Any) -> tuple[Any, ...]:
        return (i // m, k // depth, i % m, k % depth)

    def of_b(k: Any, j: Any) -> tuple[Any, ...]:
        return (j // n, k // depth, j % n, k % depth)

    sch.transform_layout(block, ("read", 0), of_a)
    sch.transform_layout(block, ("read", 1), of_b)
    sch.transform_layout(block, ("write", 0), lambda i, j: (i // m, j // n, i % m, j % n))
    i, j, k = sch.get_loops(block)
    (i0, i1), (j0, j1) = sch.split(i, [None, m]), sch.split(j, [None, n])
    k0, k1 = sch.split(k, [None, depth])
    sch.reorder(i0, j0, k0, i1, j1, k1)
    sch.reverse_compute_at(sums, j0)
    sch.decompose_reduction(block, k0)
    sch.tensorize(i1, row.name)
    return sch


def test_a_product_of_tiles_is_right_proved_and_compiled() -> None:
    row = MATRIX_PRODUCTS["mma_2x2x8_s8s8"]
    m, n, k = 2 * row.m, 2 * row.n, 2 * row.depth
    func = product(row, m, n, k)
    sch = tensorized(row, func)
    a, b, _ = matrices(row, m, n, k)
    want, got = np.zeros((2, m, n), row.accumulator)
    bw.interpret(func, a, b, want)
    bw.interpret(sch.func, a, b, got)
    np.testing.assert_array_equal(got, want)
    assert bw.verify(func, sch.func).verdict == "proved"
    assert INSTRUCTIONS[row.name] in build(sch.func, target_of(row)).source("asm")
