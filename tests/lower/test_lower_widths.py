"""Indices are mathematical integers: native code computes them in 64 bits where 32 do not do.

The sizes are int32 symbols, whose products leave 32 bits; the interpreter does not compute in types
of a machine, and is what native code is held against, beside the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.lower import lower

N = 100_000
BODIES: dict[str, tuple[str, Any]] = {
    "floordiv": ("B[vi] = (n * n + vi * n) // 100000", lambda v: N + v),
    "floormod": ("B[vi] = (n * n + vi * n) % 77", lambda v: (N * N + v * N) % 77),
    "truncdiv": ("B[vi] = T.truncdiv(n * n + vi * n, 100000)", lambda v: N + v),
    "negative": ("B[vi] = -(n * n + vi) // 100000", lambda v: -(N * N + v) // N),
    "position": ("B[vi] = A[(n * n * 20000 + vi * 77) % 100]", lambda v: v * 77 % 100),
    "select": ("B[vi] = A[T.Select(vi > 2, n * n + vi, vi) % 100]", lambda v: v % 100),
    "choice": ("B[vi] = A[T.if_then_else(vi > 2, n * n + vi, vi) % 100]", lambda v: v % 100),
    "condition": ("B[vi] = T.if_then_else(n * n + vi > n, 1, 2)", lambda v: 1),
    "minimum": ("B[vi] = T.min(n * n - vi, 5)", lambda v: 5),
    "named": ("k: T.int32 = n * n + vi\n            B[vi] = k // 100000", lambda v: N),
    "named position": (
        "k: T.int32 = n * n + vi\n            B[vi] = A[k % 99]",
        lambda v: (N * N + v) % 99,
    ),
    "loop": (
        "B[vi] = 0\n            for j in range(n * n // 1000000000):\n"
        "                B[vi] = B[vi] + j",
        lambda v: 45,
    ),
    "start": (
        "B[vi] = 0\n            for j in T.serial(n * n, n * n + 3):\n"
        "                B[vi] = B[vi] + j // 100000",
        lambda v: 3 * N,
    ),
    "left early": (
        "B[vi] = 0\n            for j in range(n * n):\n"
        "                B[vi] = B[vi] + 1\n                if j == 30:\n"
        "                    break",
        lambda v: 31,
    ),
    "stored": ("B[vi] = n * n + vi", lambda v: (N * N + v) % 2**32),  # modulo 2**32, and positive
    "memory": (
        "C = T.alloc_buffer((n * n // 100000,), 'int32')\n"
        "            C[n * n // 100000 - 1] = vi\n"
        "            B[vi] = C[n * n // 100000 - 1]",
        lambda v: v,
    ),
}
FUNCTION = """
    @T.prim_func
    def f{k}(x: T.handle, B: T.Buffer((16,), "int32")):
        n = T.int32()
        A = T.match_buffer(x, (n,), "int32")
        for i in {loop}(16):
            with T.block("P"):
                vi = T.axis.spatial(16, i)
                {body}
"""
LANES = ("floordiv", "floormod", "position", "select", "condition", "minimum", "stored")


def test_indices_that_leave_32_bits() -> None:
    """All programs are one module, so that they are compiled together."""
    cases = [
        (name, loop)
        for name in BODIES
        for loop in ("range", "T.vectorized")
        if loop == "range" or name in LANES
    ]
    text = "@I.ir_module\nclass Module:\n" + "".join(
        FUNCTION.format(k=k, loop=loop, body=BODIES[name][0].replace("\n", "\n    "))
        for k, (name, loop) in enumerate(cases)
    )
    module = bw.from_source(text)
    library = bw.build(module)
    a = np.arange(N, dtype=np.int32)
    for k, (name, loop) in enumerate(cases):
        expected = [BODIES[name][1](v) for v in range(16)]
        native, run = np.zeros(16, np.int32), np.zeros(16, np.int32)
        bw.interpret(module, a, run, entry=f"f{k}")
        library[f"f{k}"](a, native)
        assert run.tolist() == expected, name
        assert native.tolist() == expected, (name, loop)


def test_what_fits_stays_in_its_width() -> None:
    """A bound on the size is known: nothing can leave 32 bits, and nothing is changed."""
    text = FUNCTION.replace("\n    ", "\n").format(
        k=0, loop="range", body="B[vi] = A[(n * n + vi) // 1000 % 7] + n * n"
    )
    small = text.replace(
        "    n = T", '    T.func_attr({"tir_var_upper_bound": {"n": 1000}})\n    n = T'
    )
    for source, wide in ((text, True), (small, False)):
        func = bw.from_source(source)
        assert isinstance(func, ir.PrimFunc)
        changed: dict[str, bool] = {}
        lower(func, on_pass=lambda name, a, b, seen=changed: seen.update({name: a is not b}))
        assert changed["choose_widths"] is wide


def test_a_fused_loop_has_all_iterations() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((65536, 65536), "int8")):
    for i, j in T.grid(65536, 65536):
        with T.block("P"):
            vi, vj = T.axis.remap("SS", [i, j])
            A[vi, vj] = T.int8(1)
"""
    sch = bw.Schedule(bw.from_source(text))
    fused = sch.get(sch.fuse(*sch.get_loops("P")))
    assert isinstance(fused, ir.For)
    assert ir.const_int(fused.extent) == 2**32
    assert fused.loop_var.dtype is ir.dtype_of("int64")
    ir.assert_structural_equal(bw.from_source(sch.func.script()), sch.func)


@pytest.mark.parametrize("size", [2**31 - 1, 65536])
def test_constants_do_not_wrap_where_they_are_indices(size: int) -> None:
    product = ir.const(size, "int32") * ir.const(size, "int32")
    assert ir.const_int(product) is None
    assert ir.const_int(ir.const(200, "uint8") * ir.const(2, "uint8")) == 144  # a value wraps


def test_a_buffer_of_more_than_31_bits_of_elements() -> None:
    """Its memory is never touched but for a few pages."""
    text = """
@T.prim_func
def main(A: T.Buffer((65536, 32769), "int8"), B: T.Buffer((16,), "int8")):
    for i in range(16):
        with T.block("P"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[65520 + vi, 32753 + vi] + A[65535, 32753 + vi]
"""
    a = np.zeros((65536, 32769), np.int8)
    a[65535, 32760], a[65535, 32768] = 5, 7
    b = np.zeros(16, np.int8)
    bw.build(bw.from_source(text))["main"](a, b)
    assert b.tolist() == [0] * 7 + [5] + [0] * 7 + [14]


BEYOND = """
@T.prim_func
def main(x: T.handle, B: T.Buffer((4,), "int32")):
    n = T.int64()
    A = T.match_buffer(x, (n,), "int32")
    for i in range(4):
        with T.block("P"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[n * n * n * n % 8 + vi]
"""


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except bw.BlockwrightError as error:
        return error.code
    return ""


@pytest.mark.parametrize(("size", "run", "native"), [(N, "BW767", "BW718"), (1000, "", "")])
def test_what_leaves_64_bits_is_reported(size: int, run: str, native: str) -> None:
    func = bw.from_source(BEYOND)
    a, b = np.arange(size, dtype=np.int32), np.zeros(4, np.int32)
    checked = bw.build(func, sanitize=["bounds"])["main"]
    assert code_of(lambda: bw.interpret(func, a, b)) == run
    assert code_of(lambda: checked(a, b)) == native
    assert run or b.tolist() == [0, 1, 2, 3]


SCRATCH = """
@T.prim_func
def main(n: T.int64, B: T.Buffer((4,), "int32")):
    C = T.alloc_buffer((n,), "int32")
    for i in range(4):
        with T.block("P"):
            vi = T.axis.spatial(4, i)
            C[T.Cast("int64", B[vi])] = 1
    for i in range(4):
        with T.block("Q"):
            vi = T.axis.spatial(4, i)
            B[vi] = C[T.Cast("int64", B[vi])]
"""


def test_memory_whose_bytes_cannot_be_counted_is_not_there() -> None:
    """4 * n is a small number modulo 2**64, or none that memory has."""
    func = bw.from_source(SCRATCH)
    native = bw.build(func)["main"]
    for size in (2**62 + 1, 2**62, 2**61 + 1):
        b = np.arange(4, dtype=np.int32)
        assert code_of(lambda size=size, b=b: native(size, b)) == "BW720"
        assert code_of(lambda size=size, b=b: bw.interpret(func, size, b)) == "BW720"
    b = np.arange(4, dtype=np.int32)
    native(4, b)
    assert b.tolist() == [1, 1, 1, 1]


def test_a_buffer_of_too_many_bytes_is_refused() -> None:
    text = SCRATCH.replace("(n,)", "(T.int64(4194304), T.int64(4194304), T.int64(4194304))")
    text = text.replace('C[T.Cast("int64", B[vi])]', "C[0, 0, vi]")
    assert code_of(lambda: bw.validate(bw.from_source(text))) == "BW255"


def test_a_size_that_its_type_does_not_have_is_refused() -> None:
    func = bw.from_source(
        FUNCTION.replace("\n    ", "\n")
        .format(k=0, loop="range", body="B[vi] = n")
        .replace('(n,), "int32"', '(n,), "int8"')
    )
    a, b = np.zeros(2**31, np.int8), np.zeros(16, np.int32)
    assert code_of(lambda: bw.interpret(func, a, b)) == "BW702"
    assert code_of(lambda: bw.build(func)["f0"](a, b)) == "BW702"


def test_the_simplifier_keeps_the_number_of_a_constant_index() -> None:
    """99997 * 77 + 2147483647 is no number of int32; modulo 2**32 it is -2139783880."""
    i, n = ir.var("i", "int32"), ir.var("n", "int64")
    analyzer = Analyzer({i: ir.Range(ir.const(0, "int32"), ir.const(5, "int32"))})
    analyzer.bind_bounds(n, 1, 9)
    index = ir.maximum(i, 99997) * 77 + 2147483647
    simple = analyzer.simplify(ir.cast_to(ir.floormod(index, ir.cast_to(n, "int32")), "int64"))
    numbers = {node.value for node in ir.collect(simple, ir.IntImm)}
    assert 2155183416 in numbers
    assert -2139783880 not in numbers
    kept = ir.cast_to(ir.const(2**32, "int64"), "int32")
    assert isinstance(kept, ir.Cast)
