"""Functions that other functions call, and whose results have sizes that only they know.

    def f(x) -> R.Tensor(ndim=1):           def f_sized(x) -> R.Tuple(R.Object, sizes):
        y = R.unique(f(x))                      y = R.unique(<the tensor of f_sized(x)>)
        return y                    →           return <y as an object>, sizes(y)
                                            def f(x):
                                                return <the tensor of f_sized(x)>

Calls of `f` become calls of `f_sized`. `f` stays for callers outside of the module and as a value.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.passes.emit_sizes import Emitter
from blockwright.passes.parameter_sizes import without_shape
from blockwright.passes.rewrite import graph_functions
from blockwright.passes.tensor_objects import sized_object, tensor_of_object

_INT64 = ir.dtype_of("int64")


class Sized(msgspec.Struct, frozen=True):
    """The name of a function that returns objects with sizes, and what the old one returns."""

    name: str
    result: ir.Info


def with_sized_functions(module: ir.IRModule) -> tuple[ir.IRModule, dict[str, Sized]]:
    """Declare the functions that return objects with sizes; returns them by the old names.

    Their bodies and the calls still are those of the old functions.
    """
    called = {
        call.op.name
        for _, function in graph_functions(module)
        for call in ir.collect(function.body, ir.GraphCall)
        if isinstance(call.op, ir.GlobalVar)
    }
    functions, names = dict(module.functions), dict[str, Sized]()
    for name, function in graph_functions(module):
        result = function.ret_info or function.body.info
        if name not in called or result is None or not _has_tensor_without_shape(result):
            continue
        number = 0
        while (sized := f"{name}_sized{number or ''}") in functions:
            number += 1
        names[name] = Sized(sized, result)
        attrs = {k: v for k, v in function.attrs.items() if k != "global_symbol"}
        functions[sized] = function.replace(ret_info=_sized_info(result), attrs=attrs)
        functions[name] = _forwarding(function, name)
    return module.replace(functions=functions), names


def calls_any(function: ir.GraphFunction, names: Mapping[str, Sized]) -> bool:
    """Whether a function calls one of these functions."""
    calls = ir.collect(function.body, ir.GraphCall)
    return any(isinstance(c.op, ir.GlobalVar) and c.op.name in names for c in calls)


def sized_result(emitter: Emitter, value: ir.GraphExpr, info: ir.Info | None) -> ir.GraphExpr:
    """What a function returns in place of `value`, which it declares as `info`."""
    if isinstance(info, ir.TupleInfo):
        fields = enumerate(info.fields)
        parts = [sized_result(emitter, emitter.field(value, k, "field"), f) for k, f in fields]
        return ir.TupleExpr(tuple(parts))
    return sized_object(emitter, value) if _has_tensor_without_shape(info) else value


def result_of_call(
    emitter: Emitter, value: ir.GraphExpr, info: ir.Info | None, name: str
) -> ir.GraphExpr:
    """The result of a call, which the callee declares as `info`, from what it returns now."""
    if isinstance(info, ir.TupleInfo):
        parts = (
            result_of_call(emitter, emitter.field(value, k, "field"), f, f"{name}_{k}")
            for k, f in enumerate(info.fields)
        )
        return ir.TupleExpr(tuple(parts))
    if not isinstance(info, ir.TensorInfo) or not _has_tensor_without_shape(info):
        return value
    return tensor_of_object(emitter, value, info, [f"{name}_{axis}" for axis in range(info.rank)])


def _has_tensor_without_shape(info: ir.Info | None) -> bool:
    if isinstance(info, ir.TupleInfo):
        return any(map(_has_tensor_without_shape, info.fields))
    known = isinstance(info, ir.TensorInfo) and info.dtype is not None
    return known and without_shape(info)


def _sized_info(info: ir.Info | None) -> ir.Info | None:
    """The annotation of a result with objects and sizes in place of tensors without a shape."""
    if isinstance(info, ir.TupleInfo):
        fields = (_sized_info(field) for field in info.fields)
        return ir.TupleInfo(tuple(f or ir.ObjectInfo() for f in fields))
    if not isinstance(info, ir.TensorInfo) or not _has_tensor_without_shape(info):
        return info
    sizes = ir.TensorInfo((ir.const(info.rank, "int64"),), _INT64)
    return ir.TupleInfo((ir.ObjectInfo(), sizes))


def _forwarding(function: ir.GraphFunction, name: str) -> ir.GraphFunction:
    """The function with a body that calls the function of this name."""
    result = ir.GraphVar("result", True)
    call = ir.GraphCall(ir.GlobalVar(name), function.params)
    block = ir.BindingBlock((ir.VarBinding(result, call),), dataflow=function.pure)
    return function.replace(body=ir.SeqExpr((block,), result))
