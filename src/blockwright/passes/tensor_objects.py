"""Pass tensors of sizes that nothing limits out of branches and functions: as objects with sizes.

    y: R.Tensor((k,), "float32")        →    o = R.call_pure_packed("ffi.ArrayGetItem", (y,), 0)
                                             s = sizes(k)
    … where k is unknown …              →    k = R.match_cast(R.tensor_to_shape(s), R.Shape((k,)))
                                             y = R.match_cast(o, R.Tensor((k,), "float32"))

Memory for a tensor can be planned only where its size is known. An object owns its memory: the FFI
copies the tensor into an array of one item, and the item is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.passes.emit_sizes import Emitter
from blockwright.script.compute import Program

_INT64 = ir.dtype_of("int64")
_ITEM = ir.ExternFunc("ffi.ArrayGetItem")


def object_of(emitter: Emitter, value: ir.GraphExpr) -> ir.GraphVar:
    """A copy of a value that is an object."""
    first = ir.const(0, "int64")
    position = ir.PrimValue(first, info=ir.PrimInfo(_INT64, first))
    args = (_ITEM, ir.TupleExpr((value,)), position)
    call = ir.GraphCall(ir.OpRef("call_pure_packed"), args, out_info=(ir.ObjectInfo(),))
    return emitter.emit(call, "object")


def sized_object(emitter: Emitter, value: ir.GraphExpr) -> ir.TupleExpr:
    """A copy of a tensor that is an object, and a tensor of its sizes."""
    info = emitter.info(value)
    assert isinstance(info, ir.TensorInfo)
    assert info.shape is not None
    return ir.TupleExpr((object_of(emitter, value), size_tensor(emitter, info.shape)))


def size_tensor(emitter: Emitter, shape: Sequence[ir.Expr]) -> ir.GraphVar:
    """A tensor of sizes, (rank,) of int64."""
    count = ir.TensorInfo((ir.const(len(shape), "int64"),), _INT64)
    return emitter.call("sizes", _size_program(shape), [], [count], "sizes")


def tensor_of_object(
    emitter: Emitter, pair: ir.GraphExpr, like: ir.TensorInfo, names: Sequence[str]
) -> ir.GraphVar:
    """The tensor of a result of `sized_object`; its sizes are new symbols of these names.

    `like` has its type and device.
    """
    symbols = tuple(map(emitter.symbol, names))
    if symbols:
        load = ir.GraphCall(ir.OpRef("tensor_to_shape"), (emitter.field(pair, 1, "sizes"),))
        emitter.cast(emitter.emit(load, "loaded"), ir.ShapeInfo(symbols), ())
    pattern = ir.TensorInfo(symbols, like.dtype, device=like.device)
    result = ir.GraphVar("tensor", info=pattern)
    emitter.add(ir.MatchCast(result, emitter.field(pair, 0, "object"), pattern))
    return result


def _size_program(shape: Sequence[ir.Expr]) -> ir.PrimFunc:
    """The program that writes sizes into a tensor."""
    program = Program("sizes")

    def size(axis: ir.Expr) -> ir.Expr:
        result: ir.Expr = ir.const(0, "int64")
        for position, value in enumerate(shape):
            here = ir.compare(ir.EQ, axis, ir.const(position, "int64"))
            result = ir.if_then_else(here, ir.cast_to(value, _INT64), result)
        return result

    return program.finish([program.compute("out", (len(shape),), size)])
