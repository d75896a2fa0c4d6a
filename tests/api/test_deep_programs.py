"""Programs of hundreds of terms, statements and scopes: every entry takes them, or names its limit.

A walk takes two to six Python frames a level, so that a few hundred levels are beyond what Python
allows by default.
"""

from __future__ import annotations

import contextvars
import sys
import threading

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.support.stack import deep, has_room, in_room, start

N = 400
HEAD = """
@T.prim_func
def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32"), C: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.block("b"):
            vi = T.axis.spatial(16, i)
"""


def program(*lines: str) -> ir.PrimFunc:
    return bw.from_source(HEAD + "".join(f"            {line}\n" for line in lines))


def sum_of_terms() -> ir.PrimFunc:
    return program("C[vi] = " + " + ".join(["A[vi]", "B[vi]"] * (N // 2)))


def index_sum() -> ir.PrimFunc:
    return program(f"C[vi] = A[({' + '.join(['vi'] * N)}) % 16] + B[vi]")


def names() -> ir.PrimFunc:
    lines = [f"x{k + 1}: T.float32 = x{k} * T.float32(0.5) + B[vi]" for k in range(N // 2)]
    return program("x0: T.float32 = A[vi]", *lines, f"C[vi] = x{N // 2}")


def conditions() -> ir.PrimFunc:
    parts = " and ".join(f"A[vi] < T.float32({k + 1})" for k in range(N))
    return program(f"C[vi] = T.if_then_else({parts}, A[vi], B[vi])")


def choices() -> ir.PrimFunc:
    lines = ["C[vi] = B[vi]", "if A[vi] > T.float32(2):", "    C[vi] = A[vi]"]
    for k in range(N // 2):
        lines += [f"elif A[vi] > T.float32({1 - k / N}):", f"    C[vi] = B[vi] * T.float32({k})"]
    return program(*lines)


def nested_values() -> ir.PrimFunc:
    """Names inside the values of names, which no text can state: Python limits parentheses."""
    func = program("C[vi] = A[vi] + B[vi]")
    store = ir.collect(func.body, ir.BufferStore)[0]
    value, b = ir.collect(store.value, ir.BufferLoad)
    for k in range(N):
        name = ir.Var(f"x{k}", b.dtype)
        value = ir.Let(name, ir.Mul(value, ir.const(0.5, b.dtype)), ir.Sub(b, name))
    new = store.replace(value=value)
    return ir.rewrite_bottom_up(func, lambda node: new if node is store else None)


PROGRAMS = [sum_of_terms, index_sum, names, conditions, choices]


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_deep_program_passes_every_entry(make) -> None:
    func = make()
    again = bw.from_source(func.script())
    ir.assert_structural_equal(func, again)
    assert ir.structural_hash(func) == ir.structural_hash(again)
    bw.validate(func)
    _interpret_and_build(func)


def test_nested_values_pass_every_entry_but_the_parser() -> None:
    func = nested_values()
    assert ir.structural_hash(func) == ir.structural_hash(nested_values())
    bw.validate(func)
    _interpret_and_build(func)
    with pytest.raises(bw.ScriptError) as caught:
        bw.from_source(func.script())
    assert caught.value.code == "BW101"


def _interpret_and_build(func: ir.PrimFunc) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.random(16, dtype=np.float32) for _ in range(2))
    expected, found = np.empty(16, np.float32), np.empty(16, np.float32)
    bw.interpret(func, a, b, expected)
    bw.build(func)["f"](a, b, found)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_step_of_a_schedule_walks_a_deep_program() -> None:
    sch = bw.Schedule(sum_of_terms())
    (loop,) = sch.get_loops(sch.get_block("b"))
    outer, inner = sch.split(loop, factors=[None, 4])
    sch.vectorize(inner)
    sch.parallel(outer)
    assert sch.func.script().count(" + ") >= N - 1


def test_a_nest_of_too_many_loops_is_refused() -> None:
    func = program("C[vi] = A[vi]")
    store = body = ir.collect(func.body, ir.BufferStore)[0]
    zero, one = (ir.const(value, "int32") for value in (0, 1))
    for k in range(501):
        body = ir.For(ir.Var(f"l{k}"), zero, one, ir.ForKind.SERIAL, body)
    nest = ir.rewrite_bottom_up(func, lambda node: body if node is store else None)
    with pytest.raises(bw.ValidationError, match="more than 500 nested loops") as caught:
        bw.validate(nest)
    assert caught.value.code == "BW001"


def levels(count: int) -> int:
    return 0 if count == 0 else 1 + levels(count - 1)


def test_a_deep_call_takes_the_larger_stack_where_it_must_and_leaves_the_limit() -> None:
    limit = sys.getrecursionlimit()
    assert deep(levels)(100) == 100
    assert deep(levels)(20_000) == 20_000
    assert sys.getrecursionlimit() == limit
    assert deep(has_room)() is False
    assert in_room(has_room) is True


def test_what_is_too_deep_even_so_is_refused() -> None:
    with pytest.raises(bw.BlockwrightError, match="nested too deeply") as caught:
        deep(levels)(10_000_000)
    assert caught.value.code == "BW001"
    assert levels(50) == 50


def test_errors_and_context_pass_through_the_larger_stack() -> None:
    seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen")
    seen.set(7)
    assert in_room(seen.get) == 7

    def fail() -> None:
        raise KeyError("what")

    with pytest.raises(KeyError, match="what"):
        in_room(fail)


def test_a_thread_started_from_the_larger_stack_has_one_as_large() -> None:
    found: list[int] = []

    def below() -> None:
        thread = threading.Thread(target=lambda: found.append(levels(20_000)))
        start(thread)
        thread.join()

    in_room(below)
    assert found == [20_000]


def test_where_the_user_has_raised_the_limit_deep_calls_take_the_larger_stack_at_once() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        assert deep(has_room)() is True
    finally:
        sys.setrecursionlimit(before)


def test_text_too_deep_for_the_parser_of_python_is_refused() -> None:
    with pytest.raises(bw.ScriptError) as caught:
        bw.from_source("x = " + "-" * 100_000 + "1")
    assert caught.value.code == "BW101"


def test_a_kernel_with_many_nested_allocations_is_described() -> None:
    count = 1000
    lines = "".join(
        f'        B{k} = T.allocate((1,), "float32")\n        B{k}[0] = X[0] + T.float32({k})\n'
        for k in range(count)
    )
    model = bw.compile(
        bw.from_source(f"""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def last(X: T.Buffer((1,), "float32"), Y: T.Buffer((1,), "float32")):
{lines}        Y[0] = B{count - 1}[0]

    @R.function
    def main(x: R.Tensor((1,), "float32")):
        return R.call_tir(cls.last, (x,), out_sinfo=R.Tensor((1,), "float32"))
""")
    )
    assert model(np.ones(1, "float32")) == count
    assert model.memory_plan.activation_bytes() >= 4
