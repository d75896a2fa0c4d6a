"""What a program writes, by whatever name, decides what the interpreter may assume of arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.interp import interpret
from blockwright.script import tir as T
from blockwright.support import InterpretError
from tests.interp.programs_warps import fragments_of_a_warp


def _named(func: ir.PrimFunc) -> ir.PrimFunc:
    """The program with a name for the address in every declaration; parsers leave such names out.

    Before: D = T.decl_buffer(…, data=T.address_of(A[0]))
    After:  p = T.address_of(A[0]); D = T.decl_buffer(…, data=p)
    """

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.DeclBuffer):
            return None
        pointer = ir.Var("p", node.source.dtype)
        return ir.LetStmt(pointer, node.source, node.replace(source=pointer))

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))


@T.prim_func
def backwards(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    """Each element less half of its opposite: with A and B one array, the order matters."""
    T.func_attr({"tir.noalias": False})
    D = T.decl_buffer((16,), "float32", data=T.address_of(B[0]))
    for i in range(16):
        D[i] = A[i] - A[15 - i] * T.float32(0.5)


def _in_order(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    for i in range(16):
        x[i] = x[i] - x[15 - i] * np.float32(0.5)
    return x


@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("func", [backwards, _named(backwards)], ids=["address", "name"])
def test_arguments_that_are_one_array_are_worked_on_in_order(func: Any, vectorize: bool) -> None:
    x = np.arange(16, dtype=np.float32)
    want = _in_order(x.copy())
    interpret(func, x, x, vectorize=vectorize)
    np.testing.assert_array_equal(x, want)


@pytest.mark.parametrize("func", [backwards, _named(backwards)], ids=["address", "name"])
def test_a_parameter_written_through_a_view_may_not_overlap_another(func: Any) -> None:
    apart = func.with_attrs(**{"tir.noalias": True})
    x = np.zeros(16, np.float32)
    with pytest.raises(InterpretError) as caught:
        interpret(apart, x, x)
    assert caught.value.code == "BW706"
    locked = np.zeros(16, np.float32)
    locked.flags.writeable = False
    with pytest.raises(InterpretError) as caught:
        interpret(func, x, locked)
    assert caught.value.code == "BW707"


def test_what_a_hardware_operation_stores_reaches_an_array_with_gaps() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float16) for _ in range(2))
    padded = np.zeros((32, 64), np.float32)
    interpret(fragments_of_a_warp, a, b, padded[:, ::2])
    want = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(padded[:, ::2], want, rtol=1e-3, atol=1e-3)
    assert not padded[:, 1::2].any()


def _calling(named: bool) -> ir.IRModule:
    """`main` passes the address of B to `fill`, under a name or not."""
    f32, i32, i64 = (ir.dtype_of(t) for t in ("float32", "int32", "int64"))
    b, handle = ir.Buffer("B", f32, (ir.const(4, i64),)), ir.Var("B_handle", ir.dtype_of("handle"))
    address = ir.Call("address_of", (ir.BufferLoad(b, (ir.const(0, i64),)),), handle.dtype)
    pointer = ir.Var("p", handle.dtype)
    passed = pointer if named else address
    body: ir.Stmt = ir.Evaluate(ir.Call("call_global", (ir.StringImm("fill"), passed), i32))
    body = ir.LetStmt(pointer, address, body) if named else body
    root = ir.BlockRealize((), ir.const(True, "bool"), ir.Block("root", (), (), (), body))
    main = ir.PrimFunc((handle,), ((handle, b),), root, {"global_symbol": "main"})

    @T.prim_func
    def fill(X: T.Buffer((4,), "float32")):
        for i in range(4):
            X[i] = T.float32(7)

    return ir.IRModule({"main": main, "fill": fill})


@pytest.mark.parametrize("named", [False, True])
def test_a_callee_writes_what_a_named_pointer_points_to(named: bool) -> None:
    module = _calling(named)
    spread = np.zeros(8, np.float32)
    interpret(module, spread[::2])
    assert spread.tolist() == [7, 0] * 4
    locked = np.zeros(4, np.float32)
    locked.flags.writeable = False
    with pytest.raises(InterpretError) as caught:
        interpret(module, locked)
    assert caught.value.code == "BW707"
    compiled = build(module)
    with pytest.raises(bw.BlockwrightError) as refused:
        compiled["main"](locked)
    assert refused.value.code == "BW707"
    x = np.zeros(4, np.float32)
    compiled["main"](x)
    assert x.tolist() == [7] * 4


CAPTURES = """
@R.function
def main(p: R.Tensor(("n",), "float32"), c: R.Tensor((), "bool")):
    n = T.int64()
    @R.function
    def first(v: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        if c:
            s = T.int64()
            u = R.match_cast(R.unique(v), R.Tensor((s,), "float32"))
            def doubled(w: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
                return R.add(w, w)
            f = (doubled, p)
        else:
            def summed(w: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
                return R.add(R.multiply(w, p), v)
            f = (summed, p)
        g = f[0]
        y = R.invoke_closure(g, (v,), sinfo_args=R.Tensor((n,), "float32"))
        z = R.match_cast(y, R.Tensor((n,), "float32"))
        return z
    return first(p)
"""


@pytest.mark.parametrize("choice", [False, True])
def test_a_function_value_does_not_write_what_it_captures(choice: bool) -> None:
    """`summed` captures `v` and `p`, which are one array."""
    model = bw.compile(bw.from_source(CAPTURES))
    x, c = np.arange(5, dtype=np.float32), np.array(choice)
    want = x + x if choice else x * x + x
    out = np.zeros_like(x)
    interpret(model.lowered, x, c, out)
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(model(x, c), want)
