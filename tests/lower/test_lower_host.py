"""Host programs: calls of other functions, constants, tensors for external functions."""

from __future__ import annotations

from blockwright import ir
from blockwright.ir import Allocate, Buffer, Call, DeclBuffer, PrimFunc, StringImm, Var
from blockwright.ir import stmt as S
from blockwright.ir.dtype import FLOAT32, HANDLE, INT32
from blockwright.lower import check_flat, lower


def number(value: int) -> ir.Expr:
    return ir.const(value, "int64")


def address(buffer: Buffer) -> ir.Expr:
    return Call("address_of", (ir.load(buffer, *(number(0) for _ in buffer.shape)),), HANDLE)


def test_a_host_program_keeps_its_calls_and_shapes() -> None:
    n = Var("n", ir.dtype_of("int64"))
    a = Buffer("A", FLOAT32, (n, number(8)))
    c = Buffer("C", FLOAT32, (n, number(8)))
    temp = Buffer("T", FLOAT32, (n, number(8)))
    weight = Buffer("W", FLOAT32, (number(8), number(8)))
    zeros = (number(0), number(0))
    calls: list[S.Stmt] = [
        S.Evaluate(
            Call(
                "call_global",
                (StringImm("dense"), address(a), address(weight), address(temp), n),
                INT32,
            )
        ),
        S.Evaluate(
            Call(
                "call_packed",
                (
                    StringImm("my.function"),
                    Call("tensor", (ir.load(temp, *zeros),), HANDLE),
                    Call("tensor", (ir.load(c, *zeros),), HANDLE),
                ),
                INT32,
            )
        ),
    ]
    body: S.Stmt = Allocate(temp, ir.seq(calls))
    body = DeclBuffer(weight, Call("constant_data", (StringImm("w0"),), HANDLE), body)
    root = S.BlockRealize((), ir.const(True, "bool"), S.Block("root", (), (), (), body))
    handles = (Var("a", HANDLE), Var("c", HANDLE))
    func = PrimFunc(handles, ((handles[0], a), (handles[1], c)), root, {"num_outputs": 1})

    lowered = lower(func, "x86-64")
    check_flat(lowered)
    found = [call.op for call in ir.collect(lowered.body, Call)]
    assert found.count("call_global") == found.count("call_packed") == 1
    assert "constant_data" in found
    (allocation,) = ir.collect(lowered.body, Allocate)
    assert allocation.buffer.ndim == 1
    shown = [call.args[0] for call in ir.collect(lowered.body, Call) if call.op == "tensor"]
    assert [len(load.indices) for load in shown] == [2, 2]  # type: ignore[attr-defined]
    declared = {d.buffer for d in ir.collect(lowered.body, DeclBuffer)}
    assert temp in declared  # the shaped name of the flat allocation
    assert c in lowered.buffers
