"""Nodes made by hand with fields of the wrong kind are refused, by every entry, with one code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.fields import field_problems
from blockwright.support import BlockwrightError

FOUR = ir.const(4, "int64")
INFO = ir.TensorInfo((FOUR,), ir.dtype_of("float32"))
EXP = ir.OpRef("exp")
X = ir.GraphVar("x", info=INFO)
A: Any = None  # what has a wrong kind on purpose


def main(value: Any, **changes: Any) -> ir.IRModule:
    y = ir.GraphVar("y")
    block = ir.BindingBlock((ir.VarBinding(y, value),))
    fields: dict[str, Any] = {"params": (X,), "body": ir.SeqExpr((block,), y)} | changes
    return ir.IRModule({"main": ir.GraphFunction(**fields)})


def call(op: Any = EXP, args: Any = (X,), **fields: Any) -> ir.GraphCall:
    return ir.GraphCall(op, args, **fields)


def tensor(shape: Any = (FOUR,), dtype: Any = INFO.dtype, **fields: Any) -> ir.TensorInfo:
    return ir.TensorInfo(shape, dtype, **fields)


def program(**changes: Any) -> ir.PrimFunc:
    buffer = ir.Buffer("A", ir.dtype_of("float32"), (FOUR,))
    handle = ir.var("a", "handle")
    i = ir.var("i", "int64")
    store = ir.BufferStore(buffer, ir.const(1.0, "float32"), (i,))
    loop = ir.For(i, ir.const(0, "int64"), FOUR, ir.ForKind.SERIAL, store)
    return ir.PrimFunc((handle,), ((handle, buffer),), loop.replace(**changes))


WRONG: dict[str, Callable[[], Any]] = {
    "function": lambda: ir.IRModule({"main": A or 5}),
    "function that is a node": lambda: ir.IRModule({"main": FOUR}),
    "functions": lambda: ir.IRModule(A),
    "key": lambda: ir.IRModule({A or 5: program()}),
    "body": lambda: main(call(), body=A),
    "params": lambda: main(call(), params=A),
    "param": lambda: main(call(), params=(X, A)),
    "result": lambda: main(call(), body=ir.SeqExpr((), A)),
    "attributes": lambda: main(call(), attrs=A),
    "args": lambda: main(call(args=A)),
    "argument": lambda: main(call(args=(3,))),
    "op": lambda: main(call("exp")),
    "call attributes": lambda: main(call(attrs=A)),
    "size": lambda: main(call(), params=(ir.GraphVar("x", info=tensor((4,))),)),
    "shape": lambda: main(call(), params=(ir.GraphVar("x", info=tensor(4)),)),
    "type": lambda: main(call(), params=(ir.GraphVar("x", info=tensor(dtype="float32")),)),
    "device": lambda: main(call(), params=(ir.GraphVar("x", info=tensor(device=A)),)),
    "annotation": lambda: main(call(), params=(ir.GraphVar("x", info=A or "x"),)),
    "name": lambda: main(call(), params=(ir.GraphVar(A, info=INFO),)),
    "index": lambda: main(ir.TupleGetItem(ir.TupleExpr((X,)), A or "a")),
    "shape value": lambda: main(ir.ShapeExpr((4,))),  # type: ignore[arg-type]
    "loop kind": lambda: program(kind="serial"),
    "loop body": lambda: program(body=A),
    "loop variable": lambda: program(loop_var="i"),
    "extent": lambda: program(extent=4),
    "annotations": lambda: program(annotations=A),
    "program attributes": lambda: program().replace(attrs=A),
    "program body": lambda: program().replace(body=A),
    "buffer map": lambda: program().replace(buffer_map=((ir.var("a", "handle"),),)),
}


@pytest.mark.parametrize("name", WRONG)
def test_fields_of_another_kind(name: str) -> None:
    wrong = WRONG[name]()
    for entry in (bw.validate, bw.compile, bw.build):
        if entry is not bw.compile or not isinstance(wrong, ir.PrimFunc):
            with pytest.raises(BlockwrightError) as caught:
                entry(wrong)
            assert caught.value.code == "BW259", entry
            assert "holds" in caught.value.message or "is not a function" in caught.value.message


def test_lists_and_numbers_of_numpy_are_taken() -> None:
    value = call(args=[X])
    assert not field_problems(main(value))
    assert not field_problems(ir.IntImm(A or np.int64(3), ir.dtype_of("int64")))


def test_programs_of_a_compilation_hold_what_they_should() -> None:
    text = """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 8), "float32")):
        y = R.softmax(R.matmul(x, w), axis=-1)
        return R.sum(y, axes=[0])
"""
    stages: dict[str, ir.IRModule] = {}
    model = bw.compile(
        bw.from_source(text),
        options={"instruments": [lambda name, before, after: stages.update({name: after})]},
    )
    for name, module in {**stages, "lowered": model.library.lowered}.items():
        assert not field_problems(module), name
