"""Products of narrow types: micro-kernels by type and target, against exact arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.script.compute import Program
from blockwright.strategies import CONSTANT_PARAMS, apply_strategies
from blockwright.strategies.cpu.gemm_plan import GemmPlan
from blockwright.strategies.cpu.micro_kernel import micro_kernel
from blockwright.target import Target

TYPES = [
    ("uint8", "int8", "int32"),
    ("int8", "uint8", "int32"),
    ("int8", "int8", "int32"),
    ("uint8", "uint8", "int32"),
    ("int16", "int8", "int32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32"),
    ("float16", "bfloat16", "float32"),
]
ODD, EVEN = (13, 70, 31), (6, 64, 64)


def product(
    types: tuple[str, str, str], m: Any, n: Any, k: Any, *, transposed: bool, name: str = "product"
) -> ir.PrimFunc:
    """C[m, n] = sum of A[m, k] * W[k, n] over k, or of A[m, k] * W[n, k]."""
    p = Program(name)
    m, n, k = (x if isinstance(x, ir.Var) else ir.const(x, "int64") for x in (m, n, k))
    a = p.param("A", (m, k), types[0])
    w = p.param("W", (n, k) if transposed else (k, n), types[1])

    def term(i: ir.Expr, j: ir.Expr, k: ir.Expr) -> ir.Expr:
        right = w[j, k] if transposed else w[k, j]
        return ir.mul(ir.cast_to(a[i, k], types[2]), ir.cast_to(right, types[2]))

    return p.finish([p.reduce("C", (m, n), (k,), term)])


def arrays(types: tuple[str, str, str], m: int, n: int, k: int, *, transposed: bool) -> list[Any]:
    """Operands at the ends of integer types; small whole floats, whose sums are exact."""
    rng = np.random.default_rng(m * n + k)
    shapes = [(m, k), (n, k) if transposed else (k, n)]
    result: list[Any] = []
    for shape, name in zip(shapes, types, strict=False):
        if "float" in name:
            result.append(rng.integers(-8, 9, shape).astype(name))
        else:
            ends = np.iinfo(name)
            middle = rng.integers(ends.min, ends.max, shape, endpoint=True)
            edge = rng.choice([ends.min, ends.max], shape)
            result.append(np.where(rng.random(shape) < 0.3, edge, middle).astype(name))
    return result


def expected(types: tuple[str, str, str], a: Any, w: Any, *, transposed: bool) -> Any:
    wide = np.float64 if "float" in types[2] else np.int64
    return (a.astype(wide) @ (w.T if transposed else w).astype(wide)).astype(types[2])


CASES = [
    *((types, target) for types in TYPES for target in ("native", "x86-64-v3")),
    *((TYPES[k], target) for k in (2, 5) for target in ("x86-64-v4", "x86-64-v2")),
]


@pytest.mark.parametrize(
    ("types", "target"), CASES, ids=lambda x: "-".join((*x,)) if isinstance(x, tuple) else x
)
def test_products_of_narrow_types_are_exact(types: tuple[str, str, str], target: str) -> None:
    machine = Target(target, num_threads=2)
    if not machine.is_host:
        pytest.skip("this machine lacks the instructions")
    cases = [(ODD, False)] + [(EVEN, True), ((3, 5, 130), True)] * (target == "native")
    programs: list[ir.PrimFunc] = []
    for number, (shape, transposed) in enumerate(cases):
        func = product(types, *shape, transposed=transposed, name=f"p{number}")
        result = apply_strategies(func, machine)
        assert not result.faults, result.faults
        as_it_lies = transposed and "float" in types[2]  # a few rows read the matrix unpacked
        assert result.strategy in (("gemm", "gemv") if as_it_lies else ("gemm",)), result.refusals
        programs.append(
            result.func.replace(attrs={**result.func.attrs, "global_symbol": f"p{number}"})
        )
    library = build(ir.IRModule({f"p{k}": p for k, p in enumerate(programs)}), machine)
    for number, (shape, transposed) in enumerate(cases):
        a, w = arrays(types, *shape, transposed=transposed)
        c = np.zeros(shape[:2], types[2])
        library[f"p{number}"](a, w, c)
        np.testing.assert_array_equal(c, expected(types, a, w, transposed=transposed))


@pytest.mark.parametrize("types", TYPES, ids="-".join)
def test_schedules_of_narrow_types_are_proved(types: tuple[str, str, str]) -> None:
    func = product(types, *ODD, transposed=False)
    # with VNNI, signed bytes are made unsigned, which the verifier does not follow
    vnni = "" if types[:2] == ("int8", "int8") else "+avx512vnni"
    result = apply_strategies(func, Target(f"x86-64-v4+avx512bf16{vnni}", num_threads=2))
    assert bw.verify(func, result.func).verdict == "proved"


@pytest.mark.parametrize("shape", [(131, 203, 300), (64, 96, 600)])
def test_panels_widened_by_tasks_give_exact_sums(shape: tuple[int, int, int]) -> None:
    """Without `vdpbf16ps`; the weights are constant, and neither rows nor panels divide."""
    types = ("bfloat16", "bfloat16", "float32")
    machine = Target("x86-64-v3", num_threads=2)
    func = product(types, *shape, transposed=False)
    func = func.replace(attrs={**func.attrs, CONSTANT_PARAMS: (1,)})
    result = apply_strategies(func, machine)
    assert isinstance(result.plan, GemmPlan)
    assert result.plan.contractions[0].blocking.widens
    assert bw.verify(func, result.func).verdict == "proved"
    a, w = arrays(types, *shape, transposed=False)
    c = np.zeros(shape[:2], types[2])
    if machine.is_host:
        build(result.func, machine)["product"](a, w, c)
        np.testing.assert_array_equal(c, expected(types, a, w, transposed=False))


@pytest.mark.parametrize("transposed", [False, True])
def test_signed_bytes_are_made_unsigned_for_vnni(transposed: bool) -> None:
    types = ("int8", "int8", "int32")
    func = product(types, *ODD, transposed=transposed)
    result = apply_strategies(func, Target("x86-64-v4+avx512vnni", num_threads=2))
    assert "sch.offset_operand(" in result.trace.as_python()
    assert "dot4_u8s8" in result.trace.as_python()
    a, w = arrays(types, *ODD, transposed=transposed)
    c = np.zeros(ODD[:2], "int32")
    interpret(result.func, a, w, c)
    np.testing.assert_array_equal(c, expected(types, a, w, transposed=transposed))


@pytest.mark.parametrize("types", [TYPES[0], TYPES[2], TYPES[5]], ids="-".join)
def test_sizes_may_be_unknown(types: tuple[str, str, str]) -> None:
    m, k = ir.var("m", "int64"), ir.var("k", "int64")
    func = product(types, m, 40, k, transposed=True)
    result = apply_strategies(func, Target("native", num_threads=2))
    assert result.strategy == "gemm", result.refusals
    library = build(result.func, Target("native", num_threads=2))
    for rows, depth in ((1, 1), (7, 31), (20, 64), (5, 600)):
        a, w = arrays(types, rows, 40, depth, transposed=True)
        c = np.zeros((rows, 40), types[2])
        library["product"](a, w, c)
        np.testing.assert_array_equal(c, expected(types, a, w, transposed=True))


def test_the_instruction_of_the_target_is_used() -> None:
    """One micro-kernel per type and target; half precision is widened where nothing takes it."""
    wanted = {
        ("uint8", "int8", "x86-64-v4+avx512vnni"): "dot4_u8s8",
        ("int8", "uint8", "x86-64-v4+avx512vnni"): "dot4_s8u8",
        ("uint8", "int8", "x86-64-v3"): "dot2_s16s16",
        ("int8", "int8", "aarch64+dotprod"): "dot4_s8s8",
        ("bfloat16", "bfloat16", "x86-64-v4+avx512bf16"): "dot2_bf16",
        ("bfloat16", "bfloat16", "x86-64-v3"): "",
    }
    for (a, b, target), dot in wanted.items():
        total = "float32" if "float" in a else "int32"
        kernel = micro_kernel(Target(target), *map(ir.dtype_of, (a, b, total)))
        assert kernel is not None
        assert kernel.dot == dot, (a, b, target)
