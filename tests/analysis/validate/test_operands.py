"""Operands of operations, conditions and bounds: a number or type that has no meaning is refused by
its code before anything is built or run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.validate.operands import MOST_LANES
from blockwright.ir.op import OPS
from blockwright.script.ir import from_source

F32, F16, I32, BOOL = (ir.dtype_of(name) for name in ("float32", "float16", "int32", "bool"))
X, Y, N, M, C = (
    ir.var(name, kind)
    for name, kind in (("x", F32), ("y", F16), ("n", I32), ("m", ir.dtype_of("int64")), ("c", BOOL))
)
B = ir.Buffer("B", F32, (ir.const(8, I32),))
ELEMENT = ir.BufferLoad(B, (ir.const(0, I32),))


def parse(line: str) -> ir.PrimFunc:
    func = from_source(f"""
@T.prim_func(check_well_formed=False)
def main(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "int32"), n: T.int32):
    {line}
""")
    assert isinstance(func, ir.PrimFunc)
    return func


def codes(func: ir.PrimFunc) -> set[str]:
    """The codes of validation, with which a build refuses the program, too."""
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.validate(func)
    with pytest.raises(bw.BlockwrightError) as built:
        bw.build(func)
    assert built.value.code == caught.value.code
    assert all(d.span is not None for d in caught.value.diagnostics)
    return {d.code for d in caught.value.diagnostics}


def made(value: ir.Expr) -> ir.PrimFunc:
    """A function that evaluates an expression made by hand."""
    return ir.PrimFunc((X, Y, N, M, C), (), ir.Evaluate(value))


@pytest.mark.parametrize(
    "line",
    [
        'A[0] = T.call_intrin("float32", "tir.exp")',
        'A[0] = T.call_intrin("float32", "tir.exp", A[0], A[1])',
        'A[0] = T.call_intrin("float16", "tir.exp", A[0])',
        'A[0] = T.call_intrin("float32", "tir.pow", A[0], B[0])',
        'A[0] = T.call_intrin("float32", "tir.if_then_else", A[0] > 1.0, A[0])',
        'A[0] = T.call_intrin("float32", "tir.if_then_else", A[0] > 1.0, A[0], B[0])',
        'A[0] = T.call_intrin("float32", "tir.if_then_else", A[0], A[0], A[0])',
        'B[0] = T.call_intrin("int32", "tir.bitwise_and", B[0], A[0])',
        'B[0] = T.call_intrin("int32", "tir.likely", A[0] > 1.0)',
        'B[0] = T.Cast("int32", T.reinterpret("int64", A[0]))',
        "A[0] = T.Select(A[0], A[1], A[2])",
        "A[0] = A[0] if A[1] else A[2]",
        "A[0] = A[0] and A[1]",
        "A[0] = not A[0]",
        "A[0] = T.Or(A[0] > 1.0, B[0])",
        "T.assume(A[0])",
        'assert A[0], "text"',
        "if A[0]:\n        B[0] = 1",
        "while B[0]:\n        B[0] = 0",
        'with T.block("x"):\n        T.where(A[0])\n        B[0] = 1',
        'with T.block("x"):\n        vi = T.axis.spatial(8, A[0])\n        B[vi] = 1',
        "A[T.Ramp(T.Ramp(0, 1, 2), 1, 4)] = T.Broadcast(A[0], 4)",
        "C = T.alloc_buffer((8,), strides=[1, 1])\n    C[0] = 1.0",
        "C = T.alloc_buffer((T.Ramp(0, 1, 4),))\n    C[0] = 1.0",
        "C = T.decl_buffer((4,), data=A[0])\n    C[0] = 1.0",
        "A[0:2] = T.Shuffle([A[0:2]], [1, 2])",
    ],
)
def test_operands_that_have_no_meaning(line: str) -> None:
    assert "BW260" in codes(parse(line))


def test_vectors_have_at_most_as_many_lanes_as_types_count() -> None:
    for lanes, fits in ((MOST_LANES, True), (MOST_LANES + 1, False), (1 << 40, False)):
        func = parse(f"A[T.Ramp(0, 0, {lanes})] = T.Broadcast(T.float32(1), {lanes})")
        found = {p.code for p in bw.analysis.find_problems(func)}
        assert ("BW260" not in found) == fits


@pytest.mark.parametrize("line", ["break", "continue", "if n > 0:\n        break"])
def test_jumps_outside_of_loops(line: str) -> None:
    assert codes(parse(line)) == {"BW618"}


JUMP = """
@T.prim_func
def f(A: T.Buffer((8, 4), "int32"), B: T.Buffer((8, 4), "int32")):
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial(8, i)
            for j in T.{kind}(4{axis}):
                if A[v, j] > 3:
                    {jump}
                B[v, j] = 1
"""


@pytest.mark.parametrize("jump", ["break", "continue"])
@pytest.mark.parametrize("kind", ["parallel", "vectorized", "thread_binding", "serial", "unroll"])
def test_jumps_in_concurrent_loops(kind: str, jump: str) -> None:
    axis = ', thread="threadIdx.x"' if kind == "thread_binding" else ""
    func = bw.from_source(JUMP.format(kind=kind, axis=axis, jump=jump))
    assert isinstance(func, ir.PrimFunc)
    if kind in ("serial", "unroll"):
        bw.validate(func)
        return
    assert codes(func) == {"BW618"}
    with pytest.raises(bw.BlockwrightError, match="concurrent") as caught:
        bw.interpret(func, *(np.full((8, 4), k, np.int32) for k in (5, 0)))
    assert caught.value.code == "BW618"


@pytest.mark.parametrize("jump", ["break", "continue"])
def test_jumps_out_of_blocks(jump: str) -> None:
    """Steps that reorder or split the loops around a block would change which one it leaves."""
    inside = JUMP.format(kind="serial", axis="", jump="pass").replace(
        "B[v, j] = 1", f"B[v, j] = 1\n            if A[v, 0] > 3:\n                {jump}"
    )
    func = bw.from_source(inside)
    assert isinstance(func, ir.PrimFunc)
    assert codes(func) == {"BW618"}
    for use in (bw.validate, bw.build, bw.Schedule):
        with pytest.raises(bw.BlockwrightError, match=f"{jump} leaves block B"):
            use(func)
    beside = inside.replace("            if A[v, 0]", "        if A[i, 0]")
    bw.validate(bw.from_source(beside))


@pytest.mark.parametrize("kind", ["parallel", "vectorized", "thread_binding", "serial"])
def test_returns_from_concurrent_loops(kind: str) -> None:
    axis = ', thread="threadIdx.x"' if kind == "thread_binding" else ""
    func = parse(f"for i in T.{kind}(4{axis}):\n        if n > 3:\n            T.ret()")
    if kind == "serial":
        bw.validate(func)
        return
    assert codes(func) == {"BW618"}
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.interpret(func, np.zeros(8, np.float32), np.zeros(8, np.int32), 4)
    assert caught.value.code == "BW618"


@pytest.mark.parametrize("step", ["parallel", "vectorize", "bind"])
def test_steps_make_no_loop_concurrent_that_returns(step: str) -> None:
    func = bw.from_source("""
@T.prim_func
def f(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("B"):
            v = T.axis.spatial(8, i)
            if A[v] > 3:
                T.ret()
            B[v] = 1
""")
    sch = bw.Schedule(func)
    (loop,) = sch.get_loops(sch.get_block("B"))
    with pytest.raises(bw.BlockwrightError) as error:
        getattr(sch, step)(*([loop, "threadIdx.x"] if step == "bind" else [loop]))
    assert error.value.code == "BW312"


def test_loop_variables_in_blocks_are_refused_by_all() -> None:
    func = bw.from_source("""
@T.prim_func
def f(A: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("A"):
            v = T.axis.spatial(8, i)
            A[v] = 1
""")
    (loop,) = ir.loops(func.body)

    def stored(node: ir.Node) -> ir.Node | None:
        return node.replace(value=loop.loop_var) if isinstance(node, ir.BufferStore) else None

    wrong = func.replace(body=ir.rewrite_bottom_up(func.body, stored))
    uses: list[Callable[[], object]] = [
        lambda: bw.interpret(wrong, np.zeros(8, np.int32)),
        lambda: bw.Schedule(wrong),
        lambda: bw.build(wrong),
    ]
    for use in uses:
        with pytest.raises(bw.BlockwrightError) as error:
            use()
        assert error.value.code == "BW212"


def test_extents_are_not_negative() -> None:
    assert "BW250" in codes(parse("C = T.alloc_buffer((-3,))\n    C[0] = 1.0"))


@pytest.mark.parametrize("name", sorted(n for n, row in OPS.items() if row.arity >= 0))
def test_every_operation_has_its_number_of_operands(name: str) -> None:
    row = OPS[name]
    for count in {row.arity - 1, row.arity + 1} - {-1}:
        call = ir.Call(name, (ELEMENT, *[X] * count)[:count], F32)
        code = "BW217" if ir.is_atomic(call) else "BW260"
        assert code in {p.code for p in bw.analysis.find_problems(made(call))}, count


@pytest.mark.parametrize("name", sorted(n for n, r in OPS.items() if r.elementwise and r.arity > 1))
def test_lane_wise_operations_have_operands_of_one_type(name: str) -> None:
    row = OPS[name]
    call = ir.Call(name, (X, *[Y] * (row.arity - 1)), F32)
    assert "BW260" in {p.code for p in bw.analysis.find_problems(made(call))}


@pytest.mark.parametrize("kind", [ir.Add, ir.Min, ir.FloorMod, ir.EQ, ir.LT])
def test_operators_have_operands_of_one_type(kind: type[ir.Expr]) -> None:
    for a, b in ((X, Y), (N, M), (X, N), (C, N)):
        assert [p.code for p in bw.analysis.find_problems(made(kind(a, b)))] == ["BW260"]
        assert not bw.analysis.find_problems(made(kind(a, a)) if a is not C else made(a))


def test_deep_chains_of_operators_are_checked_once() -> None:
    value: ir.Expr = X
    for _ in range(20000):
        value = ir.Add(value, X)
    assert not bw.analysis.find_problems(made(value))
    assert bw.analysis.find_problems(made(ir.Add(value, Y)))


# ------------------------------------------------------------------- booleans and typed constants
def run(body: str, kinds: tuple[str, str], *values: float) -> np.ndarray:
    """What a loop body that reads A[i] stores to B[i]; interpreter and native code agree."""
    func = from_source(f"""
@T.prim_func
def main(A: T.Buffer(({len(values)},), "{kinds[0]}"), B: T.Buffer(({len(values)},), "{kinds[1]}")):
    for i in range({len(values)}):
        B[i] = {body}
""")
    assert isinstance(func, ir.PrimFunc)
    ir.assert_structural_equal(from_source(func.script()), func)
    a = np.array(values, kinds[0])
    slow, fast = np.zeros(len(a), kinds[1]), np.zeros(len(a), kinds[1])
    bw.interpret(func, a.copy(), slow)
    bw.build(func)["main"](a, fast)
    np.testing.assert_array_equal(slow, fast)
    return fast


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("(A[i] > 0) + (A[i] > 1)", [0, 1, 2]),
        ("(A[i] > 0) - (A[i] > -9)", [-1, 0, 0]),
        ("(A[i] > 0) * (A[i] > 1)", [0, 0, 1]),
        ("(A[i] > 0) // (A[i] > -9)", [0, 1, 1]),
        ("T.truncmod(A[i] > 0, A[i] > -9)", [0, 0, 0]),
        ("(A[i] > 0) << (A[i] > 1)", [0, 1, 2]),
        ("(A[i] > 0) ^ (A[i] > 1)", [0, 1, 0]),
        ("T.max(A[i] > 0, A[i] > 1)", [0, 1, 1]),
    ],
)
def test_booleans_count_as_numbers(body: str, wanted: list[int]) -> None:
    assert run(body, ("int32", "int32"), -1, 1, 2).tolist() == wanted


@pytest.mark.parametrize(
    ("body", "kinds", "wanted"),
    [
        ("A[i] + T.int32(100)", ("int8", "int32"), 200),
        ("A[i] + 100", ("int8", "int32"), -56),  # a plain number has the type of the element
        ("A[i] * T.float32(0.1)", ("float16", "float32"), np.float32(100) * np.float32(0.1)),
        ("T.max(A[i], T.float64(100.1))", ("float32", "float64"), 100.1),
        ("T.Select(A[i] < T.float32(1), A[i], T.float32(0.1))", ("float16", "float32"),
         np.float32(0.1)),
        ("A[i] < T.float32(100.01)", ("float16", "bool"), True),
        ("A[i] + T.int8(100)", ("int32", "int32"), 200),
    ],
)  # fmt: skip
def test_a_constant_of_a_wider_type_keeps_it(
    body: str, kinds: tuple[str, str], wanted: float
) -> None:
    assert run(body, kinds, 100)[0] == wanted


def test_numbers_in_strings_are_exact() -> None:
    func = parse(
        'x = T.meta_var((T.int64("9007199254740993"), T.float32("0x1.8p+1")))\n'
        "    T.evaluate(x[0])\n    T.evaluate(x[1])"
    )
    assert [n.value for n in ir.collect(func.body, ir.IntImm)] == [9007199254740993]
    assert [n.value for n in ir.collect(func.body, ir.FloatImm)] == [3.0]
