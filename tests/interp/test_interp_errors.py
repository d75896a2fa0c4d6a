"""What the interpreter reports, and what the messages say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blockwright import ir
from blockwright.interp import interpret
from blockwright.script.compute import Program
from blockwright.support import InterpretError

I64, F32 = ir.dtype_of("int64"), ir.dtype_of("float32")
TRUE = ir.const(True, "bool")


def buf(name: str, *shape: Any, dtype: str = "float32") -> ir.Buffer:
    return ir.Buffer(name, ir.dtype_of(dtype), tuple(ir.as_expr(n, I64) for n in shape))


def loop(var: ir.Var, extent: Any, body: ir.Stmt, kind: ir.ForKind = ir.ForKind.SERIAL) -> ir.For:
    return ir.For(var, ir.const(0, I64), ir.as_expr(extent, I64), kind, body)


def function(buffers: list[ir.Buffer], body: ir.Stmt, **attrs: Any) -> ir.PrimFunc:
    handles = tuple(ir.Var(f"{b.name}_handle", ir.dtype_of("handle")) for b in buffers)
    block = ir.BlockRealize((), TRUE, ir.Block("root", (), (), (), body))
    return ir.PrimFunc(handles, tuple(zip(handles, buffers, strict=True)), block, attrs)


def fails(code: str, func: ir.PrimFunc, *args: Any, **options: Any) -> str:
    texts = []
    for vectorize in (True, False):
        with pytest.raises(InterpretError) as caught:
            interpret(func, *args, vectorize=vectorize, **options)
        assert caught.value.code == code
        texts.append(str(caught.value))
    assert texts[0].splitlines()[0] == texts[1].splitlines()[0]
    return texts[0]


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def test_out_of_bounds_names_buffer_index_shape_and_loops() -> None:
    p = Program("shifted")
    x = p.param("X", (4, 8), "float32")
    y = p.compute("Y", (4, 8), lambda i, j: x[i, j + 1])
    text = fails("BW751", p.finish([y]), floats(4, 8), floats(4, 8))
    assert "X[0, 8] is outside the buffer's shape (4, 8)" in text
    assert "in block 'Y'" in text
    assert "i0 = 0, i1 = 7, v_i0 = 0, v_i1 = 7" in text


def test_store_out_of_bounds_and_negative_index() -> None:
    a, i = buf("A", 4), ir.Var("i", I64)
    func = function([a], loop(i, 4, ir.BufferStore(a, ir.const(1.0, F32), (i - 1,))))
    assert "A[-1]" in fails("BW751", func, floats(4))


def test_guarded_accesses_are_fine_and_lazy_but_select_is_not() -> None:
    a, b, i = buf("A", 4), buf("B", 4), ir.Var("i", I64)
    taken, other = ir.load(a, i + 1), ir.const(0.0, F32)
    lazy = ir.BufferStore(b, ir.if_then_else(i < 3, taken, other), (i,))
    interpret(function([a, b], loop(i, 4, lazy)), floats(4), floats(4))
    eager = ir.BufferStore(b, ir.Select(i < 3, taken, other), (i,))
    fails("BW751", function([a, b], loop(i, 4, eager)), floats(4), floats(4))


def test_reading_what_nobody_wrote() -> None:
    p = Program("sum")
    x = p.param("X", (3, 4), "float32")
    func = p.finish([p.reduce("Y", (3,), (4,), lambda i, k: x[i, k])], {"num_outputs": 1})
    realize = func.body
    assert isinstance(realize, ir.BlockRealize)
    bare = ir.rewrite_bottom_up(
        func, lambda n: n.replace(init=None) if isinstance(n, ir.Block) and n.init else None
    )
    text = fails("BW752", bare, floats(3, 4), floats(3))
    assert "Y[0] is read before it is written" in text
    assert "in block 'Y'" in text
    interpret(bare, floats(3, 4), floats(3), outputs=0)  # then Y counts as an input


def test_partly_written_allocation() -> None:
    a, t, i = buf("A", 4), buf("T", 4), ir.Var("i", I64)
    j = ir.Var("j", I64)
    body = ir.Allocate(
        t,
        ir.seq(
            [
                loop(i, 3, ir.BufferStore(t, ir.const(1.0, F32), (i,))),
                loop(j, 4, ir.BufferStore(a, ir.load(t, j), (j,))),
            ]
        ),
    )
    assert "T[3]" in fails("BW752", function([a], body), floats(4))


def test_a_buffer_is_fresh_at_each_visit_of_its_block() -> None:
    a, t, i = buf("A", 4), buf("T", 1), ir.Var("i", I64)
    zero = ir.const(0, I64)
    keep = ir.IfThenElse(i < 1, ir.BufferStore(t, ir.const(1.0, F32), (zero,)))
    use = ir.BufferStore(a, ir.load(t, zero), (i,))
    block = ir.Block("B", (), (), (), ir.seq([keep, use]), alloc_buffers=(t,))
    text = fails("BW752", function([a], loop(i, 4, ir.BlockRealize((), TRUE, block))), floats(4))
    assert "T[0]" in text
    assert "i = 1" in text


def test_failed_assertion_shows_its_message() -> None:
    i = ir.Var("i", I64)
    body = loop(i, 4, ir.AssertStmt(i < 2, "too far"))
    text = fails("BW753", function([], body))
    assert "too far" in text
    assert "i = 2" in text


@pytest.mark.parametrize("kind", [ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod])
def test_integer_division_by_zero(kind: type[ir.BinaryOp]) -> None:
    a, b = buf("A", 3, dtype="int32"), buf("B", 3, dtype="int32")
    i = ir.Var("i", I64)
    body = loop(i, 3, ir.BufferStore(b, kind(ir.const(7, "int32"), ir.load(a, i)), (i,)))
    text = fails(
        "BW754", function([a, b], body), np.array([1, 0, 2], np.int32), np.zeros(3, np.int32)
    )
    assert "i = 1" in text


def test_index_division_by_zero() -> None:
    n, a, i = ir.Var("n", I64), buf("A", 3), ir.Var("i", I64)
    func = function([a], loop(i, 3, ir.BufferStore(a, ir.const(0.0, F32), (ir.FloorDiv(i, n),))))
    func = func.replace(params=(*func.params, n))
    fails("BW754", func, floats(3), n=0)


@pytest.mark.parametrize("kind", [ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED])
def test_race_between_iterations(kind: ir.ForKind) -> None:
    a, i, zero = buf("A", 4), ir.Var("i", I64), ir.const(0, I64)
    total = ir.BufferStore(a, ir.load(a, zero) + 1.0, (zero,))
    func = function([a], loop(i, 4, total, kind))
    assert "parallel loop i" in fails("BW756", func, floats(4))
    out = floats(4)
    interpret(func, out, races=False)
    assert out[0] == 4


def test_race_of_reading_a_neighbour() -> None:
    """Whatever the order, someone reads an element that another iteration writes."""
    a, i = buf("A", 6), ir.Var("i", I64)
    func = function(
        [a], loop(i, 5, ir.BufferStore(a, ir.load(a, i + 1), (i,)), ir.ForKind.PARALLEL)
    )
    for order in (None, "reverse", 3):
        fails("BW756", func, floats(6), order=order)


def test_readers_do_not_race_and_own_buffers_neither() -> None:
    a, b, t = buf("A", 4), buf("B", 4), buf("T", 1)
    i, zero = ir.Var("i", I64), ir.const(0, I64)
    body = ir.Allocate(
        t,
        ir.seq(
            [
                ir.BufferStore(t, ir.load(a, zero), (zero,)),
                ir.BufferStore(b, ir.load(t, zero), (i,)),
            ]
        ),
    )
    func = function([a, b], loop(i, 4, body, ir.ForKind.PARALLEL))
    interpret(func, floats(4), floats(4))
    interpret(func, floats(4), floats(4), vectorize=False, order="reverse")


def test_two_readers_then_a_writer_race() -> None:
    a, b, i = buf("A", 4), buf("B", 4), ir.Var("i", I64)
    zero = ir.const(0, I64)
    read = ir.BufferStore(b, ir.load(a, zero), (i,))
    write = ir.IfThenElse(
        ir.EQ(i, ir.const(3, I64)), ir.BufferStore(a, ir.const(1.0, F32), (zero,))
    )
    fails(
        "BW756",
        function([a, b], loop(i, 4, ir.seq([read, write]), ir.ForKind.PARALLEL)),
        floats(4),
        floats(4),
    )


def test_atomic_additions_do_not_race() -> None:
    a, i, zero = buf("A", 1), ir.Var("i", I64), ir.const(0, I64)
    place = ir.Call("address_of", (ir.load(a, zero),), ir.dtype_of("handle"))
    add = ir.Evaluate(ir.Call("atomic_add", (place, ir.const(1.0, F32)), F32))
    out = floats(1)
    interpret(function([a], loop(i, 4, add, ir.ForKind.PARALLEL)), out)
    assert out[0] == 4


def test_iterator_outside_its_domain() -> None:
    a, i = buf("A", 8), ir.Var("i", I64)
    v = ir.IterVar(ir.Var("v", I64), ir.Range(ir.const(0, I64), ir.const(3, I64)))
    block = ir.Block("B", (v,), (), (), ir.BufferStore(a, ir.const(0.0, F32), (v.var,)))
    func = function([a], loop(i, 4, ir.BlockRealize((i,), TRUE, block)))
    assert "block iterator v" in fails("BW755", func, floats(8))


def test_thread_bound_loops_run_one_thread_after_another() -> None:
    a, i = buf("A", 4), ir.Var("i", I64)
    thread = ir.IterVar(
        ir.Var("tx", I64), ir.Range(ir.const(0, I64), ir.const(4, I64)), thread_tag="threadIdx.x"
    )
    bound = ir.For(
        i,
        ir.const(0, I64),
        ir.const(4, I64),
        ir.ForKind.THREAD_BINDING,
        ir.BufferStore(a, ir.const(2.0, F32), (i,)),
        thread,
    )
    out = floats(4)
    interpret(function([a], bound), out)
    assert out.tolist() == [2.0] * 4


@pytest.mark.parametrize("name", ["call_extern", "call_pure_extern"])
def test_rows_without_meaning_are_named(name: str) -> None:
    call = ir.Call(name, (ir.StringImm("f"),), F32)
    assert name in fails("BW757", function([], ir.Evaluate(call)))


def test_operations_that_are_kept_as_written_have_no_meaning() -> None:
    call = ir.Call("q_multiply_shift", (ir.const(1, "int32"),), ir.dtype_of("int32"))
    message = fails("BW757", function([], ir.Evaluate(call)))
    assert "'q_multiply_shift': nothing defines what it computes" in message


def test_views_must_fit() -> None:
    b, view = buf("B", 4, 6), buf("V", 2, 2)
    region = (
        ir.Range(ir.const(0, I64), ir.const(2, I64)),
        ir.Range(ir.const(0, I64), ir.const(3, I64)),
    )
    match = ir.MatchBufferRegion(view, ir.BufferRegion(b, region))
    block = ir.Block("B", (), (), (), ir.Evaluate(ir.const(0, "int32")), match_buffers=(match,))
    fails("BW758", function([b], ir.BlockRealize((), TRUE, block)), floats(4, 6))


def test_a_declared_buffer_stays_inside_its_memory() -> None:
    a, flat = buf("A", 4), buf("F", 5)
    place = ir.Call("address_of", (ir.load(a, ir.const(0, I64)),), ir.dtype_of("handle"))
    body = ir.DeclBuffer(flat, place, ir.Evaluate(ir.const(0, "int32")))
    fails("BW751", function([a], body), floats(4))


# ------------------------------------------------------------------------------------ arguments
def copy(n: Any) -> ir.PrimFunc:
    p = Program("copy")
    x = p.param("X", (n,), "float32")
    z = p.param("Z", (n,), "float32")
    y = p.compute("Y", (n,), lambda i: x[i] + z[i])
    return p.finish([y], {"tir_var_upper_bound": {"n": 8}})


def test_arguments_are_checked_like_those_of_a_call() -> None:
    n = ir.Var("n", I64)
    func, x = copy(n), floats(4)
    fails("BW701", func, x, x)
    fails("BW702", func, x, [0.0], floats(4))
    fails("BW703", func, x, x.astype(np.float64), floats(4))
    fails("BW704", func, x, floats(4, 1), floats(4))
    fails("BW704", copy(4), floats(3), x, floats(4))
    fails("BW709", func, x, floats(5), floats(4))
    fails("BW708", func, floats(9), floats(9), floats(9))
    locked = floats(4)
    locked.flags.writeable = False
    fails("BW707", func, x, x, locked)
    fails("BW701", func, x, x, floats(4), wrong=3)
    fails("BW760", func, x, x, floats(4), order="sideways")


def test_a_written_argument_must_not_overlap_another() -> None:
    func, x = copy(ir.Var("n", I64)), floats(4)
    assert "X and Y overlap" in fails("BW706", func, x, floats(4), x)
    allowed = func.with_attrs(**{"tir.noalias": False})
    interpret(allowed, x, floats(4), x)
    interpret(func, x, x, floats(4))  # readers may share


def test_an_unbound_symbol_must_be_given() -> None:
    n, a, i = ir.Var("n", I64), buf("A", 4), ir.Var("i", I64)
    func = function([a], loop(i, n, ir.BufferStore(a, ir.const(1.0, F32), (i,))))
    func = func.replace(params=(*func.params, n))
    fails("BW701", func, floats(4))
    out = floats(4)
    interpret(func, out, n=2)
    assert out.tolist() == [1, 1, 0, 0]


def test_a_symbol_is_solved_for_as_in_compiled_calls() -> None:
    n, i = ir.Var("n", I64), ir.Var("i", I64)
    size = ir.add(ir.mul(n, ir.const(2, I64)), ir.const(1, I64))
    a, b = buf("A", size), buf("B", n)
    func = function([a], loop(i, n, ir.BufferStore(a, ir.const(1.0, F32), (i,))))
    out = np.zeros(5, "float32")
    interpret(func, out)
    assert out.tolist() == [1, 1, 0, 0, 0]
    fails("BW704", func, np.zeros(4, "float32"))
    both = function([a, b], loop(i, n, ir.BufferStore(a, ir.const(1.0, F32), (i,))))
    interpret(both, out, np.zeros(2, "float32"))
    fails("BW704", both, out, np.zeros(3, "float32"))


def staged(value: ir.Expr, a: ir.Buffer, b: ir.Buffer, t: ir.Buffer, i: ir.Var) -> ir.PrimFunc:
    """T is allocated outside the parallel loop that alone uses it, as schedules leave it."""
    zero = ir.const(0, I64)
    body = ir.seq([ir.BufferStore(t, value, (zero,)), ir.BufferStore(b, ir.load(t, zero), (i,))])
    block = ir.Block("outer", (), (), (), loop(i, 4, body, ir.ForKind.PARALLEL), alloc_buffers=(t,))
    return function([a, b], ir.BlockRealize((), TRUE, block))


def test_a_buffer_used_only_inside_a_parallel_loop_belongs_to_its_iterations() -> None:
    a, b, t, i = buf("A", 4), buf("B", 4), buf("T", 1), ir.Var("i", I64)
    func = staged(ir.load(a, i) * 2.0, a, b, t, i)
    for options in ({}, {"vectorize": False}, {"vectorize": False, "order": "reverse"}):
        x, y = np.arange(4, dtype=np.float32), floats(4)
        interpret(func, x, y, **options)
        assert y.tolist() == [0, 2, 4, 6]


def test_values_do_not_cross_between_parallel_iterations() -> None:
    a, b, t, i = buf("A", 4), buf("B", 4), buf("T", 1), ir.Var("i", I64)
    carried = ir.if_then_else(i < 1, ir.load(a, i), ir.load(t, ir.const(0, I64)))
    assert "T[0]" in fails("BW752", staged(carried, a, b, t, i), floats(4), floats(4))
