"""Reducers in scripts: declared, stepped, expanded to the loop form, printed and read back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir, validate
from blockwright.analysis import Reduction, find_reduction
from blockwright.interp import interpret
from blockwright.schedule import Schedule
from blockwright.script import te
from blockwright.script.compute import Program, comm_reducer
from blockwright.script.ir import from_source
from blockwright.support import IRError, ScriptError

HEAD = """
@T.prim_func
def main(A: T.Buffer((4, 9), "float32"), V: T.Buffer((4,), "float32"),
         I: T.Buffer((4,), "{kind}")):
    T.func_attr({{"num_outputs": 2}})
    {declared}
    for i, k in T.grid(4, 9):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            {step}
"""


def program(declared: str, step: str, kind: str = "int64") -> ir.PrimFunc:
    parsed = from_source(HEAD.format(declared=declared, step=step, kind=kind))
    assert isinstance(parsed, ir.PrimFunc)
    return parsed


def block_in(func: ir.PrimFunc, name: str = "B") -> ir.Block:
    return next(b for b in ir.blocks(func.body) if b.name == name)


def reduction_in_block(func: ir.PrimFunc, name: str) -> Reduction:
    found = find_reduction(block_in(func, name))
    assert isinstance(found, Reduction), found
    return found


def reduction_in(func: ir.PrimFunc) -> Reduction:
    return reduction_in_block(func, "B")


ARGMAX = program(
    'best = T.comm_reducer("argmax", ["float32", "int64"])',
    "best.step((V[vi], I[vi]), (A[vi, vk], vk))",
)
MOMENTS = program(
    "pair = T.comm_reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), (T.float32(0), T.float32(0)))",
    "pair.step((V[vi], I[vi]), (A[vi, vk], A[vi, vk] * A[vi, vk]))",
    "float32",
)
FLAT = program(
    "pair = T.comm_reducer(lambda a, b, c, d: (a + c, b + d), [T.float32(0), T.float32(0)])",
    "pair.step((V[vi], I[vi]), (A[vi, vk], A[vi, vk] * A[vi, vk]))",
    "float32",
)


def test_the_loop_form_of_a_builtin_reducer_needs_no_annotation() -> None:
    block = block_in(ARGMAX)
    assert not block.annotations
    assert reduction_in(ARGMAX).name == "argmax"


def test_a_declared_reducer_stays_with_its_block() -> None:
    reducer = block_in(MOMENTS).annotations["reducer"]
    assert isinstance(reducer, ir.CommReducer)
    assert reduction_in(MOMENTS).name == ""
    ir.assert_structural_equal(MOMENTS, FLAT)


@pytest.mark.parametrize("func", [ARGMAX, MOMENTS], ids=["argmax", "moments"])
def test_reducers_survive_print_and_parse(func: ir.PrimFunc) -> None:
    again = from_source(func.script())
    ir.assert_structural_equal(again, func)
    assert isinstance(again, ir.PrimFunc)
    assert reduction_in(again).name == reduction_in(func).name
    sch = Schedule(again, verify="full")
    sch.rfactor(sch.get_loops(sch.get_block("B"))[1], 0)
    ir.assert_structural_equal(from_source(sch.func.script()), sch.func)


def test_parameters_of_a_reducer_may_be_called_like_buffers() -> None:
    func = program(
        "r = T.comm_reducer(lambda V, A: T.Select(V > A or V != V, V, A) "
        '* T.float32(1), T.float32("-inf"))',
        "r.step(V[vi], A[vi, vk])",
    )
    ir.assert_structural_equal(from_source(func.script()), func)
    assert reduction_in(func).name == ""


def test_the_sum_of_the_first_listing() -> None:
    """`reducer.step` as in the TensorIR proposal is the sum in loop form."""
    func = program(
        "reducer = T.comm_reducer(lambda x, y: x + y, T.float32(0))",
        "reducer.step(V[vi], A[vi, vk] * A[vi, vk])",
    )
    by_hand = program(
        "pass",
        """
            with T.init():
                V[vi] = T.float32(0)
            V[vi] = V[vi] + A[vi, vk] * A[vi, vk]""".strip(),
    )
    ir.assert_structural_equal(func, by_hand)


SPECIAL = np.array(
    [
        [1, 3, 3, 2, 3, 0, 1, 2, 3],
        [0, -0.0, 0, 0, 0, 0, 0, 0, 0],
        [1, np.nan, 9, np.nan, 2, np.inf, 0, 0, 0],
        [-np.inf] * 9,
    ],
    np.float32,
)


@pytest.mark.parametrize(("name", "oracle"), [("argmax", np.argmax), ("argmin", np.argmin)])
def test_first_of_ties_and_nan_before_numbers(name: str, oracle: Any) -> None:
    func = program(
        f'best = T.comm_reducer("{name}", ["float32", "int64"])',
        "best.step((V[vi], I[vi]), (A[vi, vk], vk))",
    )
    value, index = np.empty(4, np.float32), np.empty(4, np.int64)
    interpret(func, SPECIAL, value, index)
    np.testing.assert_array_equal(index, oracle(SPECIAL, 1))
    np.testing.assert_array_equal(value, SPECIAL[np.arange(4), oracle(SPECIAL, 1)])


WRONG = {
    "broken law": ("r = T.comm_reducer(lambda x, y: x - y, T.float32(0))",
                   "r.step(V[vi], A[vi, vk])", "for x = 0.0, y = 1.0"),
    "one element for two components": (
        'r = T.comm_reducer("argmax", ["float32", "int64"])', "r.step(V[vi], A[vi, vk])",
        "has 2 components"),
    "no element": ("r = T.comm_reducer(lambda x, y: x + y, T.float32(0))",
                   "r.step(3, A[vi, vk])", "takes elements of buffers"),
    "another type": ("r = T.comm_reducer(lambda x, y: x + y, T.int32(0))",
                     "r.step(V[vi], A[vi, vk])", "V holds float32, the reducer combines int32"),
    "twice": ("r = T.comm_reducer(lambda x, y: x + y, T.float32(0))",
              "r.step(V[vi], A[vi, vk]); r.step(V[vi], A[vi, vk])", "once in a block"),
    "unknown": ('r = T.comm_reducer("median", ["float32"])', "r.step(V[vi], A[vi, vk])",
                "no reducer 'median'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_reducers_are_told(name: str) -> None:
    declared, step, words = WRONG[name]
    with pytest.raises(ScriptError, match=words):
        program(declared, step)


# ------------------------------------------------------------------------------ the compute front
def test_compute_takes_names_and_declared_reducers_and_tuples() -> None:
    p = Program("stats")
    x = p.param("X", (5, 6), "float32")
    pair = comm_reducer(
        lambda x, y: (x[0] + y[0], ir.maximum(x[1], y[1])),
        lambda s, t: (ir.const(0, s), ir.const(float("-inf"), t)),
    )
    total, top = p.reduce_tuple(("total", "top"), (5,), (6,), lambda i, k: (x[i, k], x[i, k]), pair)
    low, at = p.reduce_tuple(
        ("low", "at"), (5,), (6,), lambda i, k: (x[i, k], k), "argmin", ("float32", "int32")
    )
    norm = p.reduce(
        "norm",
        (5,),
        (6,),
        lambda i, k: x[i, k],
        comm_reducer(lambda x, y: x + y, lambda t: ir.const(0, t)),
    )
    func = p.finish([total, top, low, at, norm], {"num_outputs": 5})
    assert [b.name for b in ir.blocks(func.body)] == ["root", "total", "low", "norm"]
    assert "reducer" not in block_in(func, "norm").annotations
    ir.assert_structural_equal(from_source(func.script()), func)
    a = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    out = [np.empty(5, t) for t in (np.float32, np.float32, np.float32, np.int32, np.float32)]
    interpret(func, a, *out)
    np.testing.assert_allclose(out[0], a.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out[1], a.max(1))
    np.testing.assert_array_equal(out[2], a.min(1))
    np.testing.assert_array_equal(out[3], a.argmin(1))
    np.testing.assert_array_equal(out[4], out[0])


def test_te_takes_declared_reducers_of_tuples() -> None:
    """The classic argmax of (position, value) pairs, with ties put in order by position."""
    a = te.placeholder((5, 7), "int32", name="A")
    k = te.reduce_axis((0, 7), name="k")

    def first(x: Any, y: Any) -> tuple[ir.Expr, ir.Expr]:
        keep = ir.logical_or(x[1] > y[1], ir.logical_and(ir.EQ(x[1], y[1]), x[0] < y[0]))
        return ir.select(keep, x[0], y[0]), ir.select(keep, x[1], y[1])

    argmax = te.comm_reducer(first, lambda i, t: (te.max_value(i), te.min_value(t)), name="argmax")
    place, value = te.compute((5,), lambda i: argmax((k, a[i, k]), axis=k), name="T")
    func = te.create_prim_func([a, place, value])
    assert reduction_in_block(func, "T_v0").name == "argmax"
    data = np.random.default_rng(2).integers(0, 3, (5, 7)).astype(np.int32)
    out = np.empty(5, np.int32), np.empty(5, np.int32)
    interpret(func, data, *out)
    np.testing.assert_array_equal(out[0], data.argmax(1))
    np.testing.assert_array_equal(out[1], data.max(1))


def test_te_adds_only_what_a_condition_admits() -> None:
    a = te.placeholder((5, 7), "float32", name="A")
    k = te.reduce_axis((0, 7), name="k")
    total = te.comm_reducer(lambda x, y: x + y, lambda t: te.const(0, t), name="total")
    b = te.compute((5,), lambda i: total(a[i, k], axis=k, where=k < 3), name="B")
    data, out = np.ones((5, 7), np.float32), np.empty(5, np.float32)
    interpret(te.create_prim_func([a, b]), data, out)
    np.testing.assert_array_equal(out, np.full(5, 3, np.float32))


def test_compute_tells_what_does_not_fit() -> None:
    p = Program("wrong")
    x = p.param("X", (5, 6), "float32")
    half = comm_reducer(lambda x, y: (x + y) * 0.5, lambda t: ir.const(0, t))
    with pytest.raises(IRError, match="grouping of its operands"):
        p.reduce("a", (5,), (6,), lambda i, k: x[i, k], half)
    with pytest.raises(IRError, match="1 terms for 2 names"):
        p.reduce_tuple(("a", "b"), (5,), (6,), lambda i, k: x[i, k], "argmax")
    with pytest.raises(IRError, match="there is no reducer 'mode'"):
        p.reduce("a", (5,), (6,), lambda i, k: x[i, k], "mode")


def test_blocks_write_parts_of_one_tensor() -> None:
    p = Program("joined")
    x, y = p.param("X", (3,), "float32"), p.param("Y", (4,), "float32")
    joined = p.alloc("Z", (7,), "float32")
    p.compute("front", (3,), lambda i: x[i], into=(joined, lambda i: (i,)))
    p.compute("back", (4,), lambda i: y[i] * 2.0, into=(joined, lambda i: (i + 3,)))
    func = p.finish([joined])
    assert [b.name for b in ir.blocks(func.body)][-2:] == ["front", "back"]
    first, second, out = (np.arange(n, dtype="float32") for n in (3, 4, 7))
    interpret(func, first, second, out)
    np.testing.assert_array_equal(out, np.concatenate([first, second * 2]))


def test_a_reducer_as_the_subject_of_an_attribute() -> None:
    """The node of `T.attr` may be a reducer; it prints as the declaration that it was."""
    func = from_source("""
@T.prim_func
def f(A: T.Buffer((8,), "float32")):
    with T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope", 1):
        A[0] = T.float32(1)
""")
    (attribute,) = ir.collect(func.body, ir.AttrStmt)
    assert isinstance(attribute.node, ir.CommReducer)
    ir.assert_structural_equal(func, from_source(func.script()))


def test_a_reducer_of_an_attribute_defines_its_operands() -> None:
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "float32")):
    with T.attr(T.comm_reducer(lambda x, y: x * y, [T.float32(1)]), "reduce_scope", 1):
        A[0] = T.float32(1)
"""
    validate(from_source(text))
