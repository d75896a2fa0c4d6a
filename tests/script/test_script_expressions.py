"""Random expressions read back from their text to the very same tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright import ir
from blockwright.ir import Expr
from blockwright.script.ir import from_source

KINDS = ("int32", "int64", "float32", "bool")
VARS = {kind: [ir.var(f"{kind[0]}{kind[-2:]}{k}", kind) for k in range(2)] for kind in KINDS}
BUFFERS = {
    kind: ir.Buffer(f"B_{kind}", ir.dtype_of(kind), (ir.const(8, "int32"), ir.const(8, "int32")))
    for kind in KINDS
}


def literals(kind: str) -> st.SearchStrategy[Expr]:
    dtype = ir.dtype_of(kind)
    if dtype.is_float:
        return st.floats(width=32).map(lambda v: ir.FloatImm(v, dtype))
    if dtype.is_bool:
        return st.booleans().map(lambda v: ir.IntImm(int(v), dtype))
    return st.integers(-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1).map(
        lambda v: ir.IntImm(v, dtype)
    )


@st.composite
def expressions(draw: st.DrawFn, kind: str, depth: int) -> Expr:
    if depth == 0:
        return draw(literals(kind) | st.sampled_from(VARS[kind]))
    below = lambda k: draw(expressions(k, draw(st.integers(0, depth - 1))))  # noqa: E731
    other = draw(st.sampled_from(KINDS))
    choices = [
        lambda: ir.Select(below("bool"), below(kind), below(kind)),
        lambda: ir.Call(
            "if_then_else", (below("bool"), below(kind), below(kind)), ir.dtype_of(kind)
        ),
        lambda: ir.Cast(ir.dtype_of(kind), below(other)),
        lambda: ir.BufferLoad(BUFFERS[kind], (below("int32"), below("int32"))),
        lambda: let(below(other), lambda v: ir.Select(below("bool"), below(kind), below(kind))),
    ]
    if kind == "bool":
        compare = draw(st.sampled_from([ir.EQ, ir.NE, ir.LT, ir.LE, ir.GT, ir.GE]))
        logic = draw(st.sampled_from([ir.And, ir.Or]))
        number = draw(st.sampled_from(["int32", "int64", "float32"]))
        choices += [
            lambda: compare(below(number), below(number)),
            lambda: logic(below("bool"), below("bool")),
            lambda: ir.Not(below("bool")),
        ]
    else:
        pick = [ir.Add, ir.Sub, ir.Mul, ir.FloorDiv, ir.FloorMod, ir.Min, ir.Max, ir.Div, ir.Mod]
        binary = draw(st.sampled_from(pick))
        choices += [lambda: binary(below(kind), below(kind))] * 4
    if kind == "float32":
        unary = draw(st.sampled_from(["exp", "tanh", "floor", "abs"]))
        choices += [lambda: ir.Call(unary, (below(kind),), ir.dtype_of(kind))]
    return draw(st.sampled_from(choices))()


def let(value: Expr, body) -> Expr:
    variable = ir.Var("t", value.dtype)
    return ir.Let(
        variable, value, ir.Select(ir.EQ(variable, variable), body(variable), body(variable))
    )


def program(value: Expr) -> ir.PrimFunc:
    handles = [ir.var(f"{b.name}_handle", "handle") for b in BUFFERS.values()]
    params = (*handles, *(v for group in VARS.values() for v in group))
    pairs = tuple(zip(handles, BUFFERS.values(), strict=True))
    return ir.PrimFunc(params, pairs, ir.Evaluate(value), {"global_symbol": "f"})


@pytest.mark.fuzz
@given(st.sampled_from(KINDS).flatmap(lambda kind: expressions(kind, 5)))
def test_expressions_round_trip(value: Expr) -> None:
    function = program(value)
    text = repr(function)
    again = from_source(text)
    ir.assert_structural_equal(again, function)
    assert repr(again) == text


@pytest.mark.fuzz
@given(st.floats(allow_nan=True), st.sampled_from(["float64", "float32", "float16", "bfloat16"]))
def test_float_literals_keep_their_bits(value: float, kind: str) -> None:
    function = program(ir.FloatImm(value, ir.dtype_of(kind)))
    ir.assert_structural_equal(from_source(repr(function)), function)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a - (b - c)", "a - (b - c)"),
        ("(a - b) - c", "a - b - c"),
        ("a * (b + c)", "a * (b + c)"),
        ("-1 * a", "-1 * a"),
        ("a < b and (b < c or not c < a)", "a < b and (b < c or not c < a)"),
        ("0 <= a < b", "0 <= a and a < b"),
        ("(a < b) == (b < c)", "(a < b) == (b < c)"),
        ("a // b % c", "a // b % c"),
        ("a // (b % c)", "a // (b % c)"),
        ("2 * 3 + a", "6 + a"),
        ("T.int32(2) * 3 + a", "T.int32(2) * 3 + a"),
        ("min(a, b)", "T.min(a, b)"),
        ("T.max(a, b, c)", "T.max(T.max(a, b), c)"),
        ("a << 2", "T.shift_left(a, 2)"),
        ("(a < b) & (b < c)", "a < b and b < c"),
        ("T.ceildiv(a, b)", "(a + (b - 1)) // b"),
        ("a.astype('float32')", 'T.Cast("float32", a)'),
        ("T.float32(a)", 'T.Cast("float32", a)'),
        ("T.Cast('int64', a) + 1", 'T.Cast("int64", a) + 1'),
        ("T.broadcast(1.5, 4)", "T.broadcast(T.float32(1.5), 4)"),
        ("T.broadcast(a, 1)", "a"),
        ("A[a, T.ramp(b, 2, 1)]", "A[a, b]"),
        ("A[a, 0:4]", "A[a, T.ramp(0, 1, 4)]"),
        ("A[0, b:b + 8:2]", "A[0, T.ramp(b, 2, 4)]"),
    ],
)
def test_spelling(text: str, expected: str) -> None:
    params = "A: T.Buffer((8, 8), 'int8'), a: T.int32, b: T.int32, c: T.int32"
    source = f"@T.prim_func\ndef f({params}):\n    T.evaluate({text})\n"
    assert f"T.evaluate({expected})" in repr(from_source(source))


def test_long_sums_neither_overflow_the_printer_nor_the_parser() -> None:
    x = ir.var("x")
    value: Expr = x
    for _ in range(500):
        value = ir.Add(value, x)
    function = ir.PrimFunc((x,), (), ir.Evaluate(value), {"global_symbol": "f"})
    ir.assert_structural_equal(from_source(repr(function)), function)
