"""Evaluate graph functions in NumPy, by their operators and tensor programs alone.

Annotations of values, `out_sinfo` and results have no influence on values, which are compared with
those of variables. Symbols are bound to the sizes of the arguments and of the values that
match_cast binds; those of a branch or a local function end with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from blockwright import ir
from blockwright.graph import inherited_bounds, symbol_ranges
from blockwright.interp import interpret
from blockwright.ops.table import OPERATORS


class CastFails(Exception):
    """The shape of a match_cast or parameter does not match its annotation."""


class NotAsAnnotated(Exception):
    """A value does not have the annotation of its variable."""


class Undefined(Exception):
    """The evaluation does not cover a part of the module."""


Sizes = dict[ir.Var, int]
Array = np.ndarray[Any, Any]
_OPERATIONS: dict[type[ir.BinaryOp], Callable[[int, int], int]] = {
    ir.Add: operator.add, ir.Sub: operator.sub, ir.Mul: operator.mul,
    ir.FloorDiv: lambda a, b: a // b, ir.FloorMod: operator.mod, ir.Min: min, ir.Max: max,
}  # fmt: skip


def fields_of(value: Any) -> tuple[Any, ...] | None:
    """The values of a tuple; None for other values."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else None


def number(expr: ir.Expr, sizes: Sizes) -> int:
    """The value of a size expression. Raises: Undefined for other expressions."""
    if isinstance(expr, ir.IntImm):
        return expr.value
    if isinstance(expr, ir.Var) and expr in sizes:
        return sizes[expr]
    if isinstance(expr, ir.Cast):
        return number(expr.value, sizes)
    if isinstance(expr, ir.BinaryOp):
        a, b = number(expr.a, sizes), number(expr.b, sizes)
        if isinstance(expr, (ir.FloorDiv, ir.FloorMod)) and b == 0:
            raise CastFails("a size divides by zero")
        if type(expr) in _OPERATIONS:
            return _OPERATIONS[type(expr)](a, b)
    raise Undefined(f"{expr!r} is not a size")


def dims(info: ir.Info | None) -> tuple[ir.Expr, ...] | None:
    """The sizes in an annotation."""
    if isinstance(info, ir.TensorInfo):
        return info.shape
    if isinstance(info, ir.ShapeInfo):
        return info.values
    return (info.value,) if isinstance(info, ir.PrimInfo) and info.value is not None else None


def shape_of(value: Any) -> tuple[int, ...]:
    """The sizes of an array, the values of a shape, or a number as a tuple."""
    if isinstance(value, np.ndarray):
        return tuple(cast("Array", value).shape)
    return value.values if isinstance(value, Shape) else (int(value),)


class Shape:
    """A shape as a value, distinct from a tuple of values."""

    def __init__(self, values: Sequence[int]) -> None:
        self.values: tuple[int, ...] = tuple(values)


class Function(msgspec.Struct, frozen=True):
    """A function as a value, with the sizes and values that were bound where it was made."""

    function: ir.GraphFunction
    sizes: Sizes
    values: dict[ir.GraphVar, Any]


def bind(info: ir.Info | None, value: Any, sizes: Sizes) -> None:
    """Bind the symbols that are whole dimensions of an annotation to the sizes of a value."""
    parts = fields_of(value)
    if isinstance(info, ir.TupleInfo):
        if parts is None or len(parts) != len(info.fields):
            raise CastFails("wrong number of fields")
        for field, part in zip(info.fields, parts, strict=True):
            bind(field, part, sizes)
    if parts is not None:
        return
    wanted = dims(info)
    if wanted is None or isinstance(value, Function):
        return
    for dim, size in zip(wanted, shape_of(value), strict=False):
        if isinstance(dim, ir.Var):
            sizes.setdefault(dim, size)


def check(info: ir.Info | None, value: Any, sizes: Sizes) -> None:
    """Raise CastFails unless the value matches the annotation."""
    parts = fields_of(value)
    if isinstance(info, ir.TupleInfo):
        if parts is None or len(parts) != len(info.fields):
            raise CastFails("wrong number of fields")
        for field, part in zip(info.fields, parts, strict=True):
            check(field, part, sizes)
        return
    if isinstance(info, ir.ObjectInfo) or info is None or isinstance(value, Function):
        return
    if parts is not None or isinstance(info, ir.TensorInfo) != isinstance(value, np.ndarray):
        raise CastFails("wrong kind of value")
    wanted, result = dims(info), shape_of(value)
    rank = getattr(info, "ndim", -1)
    if rank not in (-1, len(result)) or (wanted is not None and len(wanted) != len(result)):
        raise CastFails(f"rank {len(result)}")
    if wanted is not None and tuple(number(d, sizes) for d in wanted) != result:
        raise CastFails(f"shape {result}")
    kind = info.dtype if isinstance(info, ir.TensorInfo) else None
    if kind is not None and value.dtype != kind.numpy():
        raise CastFails(f"type {value.dtype}")


def _check_ranges(function: ir.GraphFunction, sizes: Sizes, before: Sizes) -> None:
    """Raise CastFails unless new sizes are in the ranges that the function declares."""
    new = [symbol for symbol in sizes if symbol not in before]
    for symbol, bounds in symbol_ranges(function.attrs, new).items():
        low, extent = ir.const_int(bounds.min), ir.const_int(bounds.extent)
        assert low is not None
        assert extent is not None
        if not low <= sizes[symbol] < low + extent:
            raise CastFails(f"{symbol.name} = {sizes[symbol]} is out of range")


class Evaluation:
    """Evaluates one function of a module."""

    def __init__(self, module: ir.IRModule) -> None:
        self.module = module

    def run(self, name: str, arrays: Sequence[Any]) -> Any:
        """The result for the given arguments. Raises: CastFails, Undefined."""
        return self._function(Function(self.module[name], {}, {}), arrays)

    def _function(self, callee: Function, arrays: Sequence[Any]) -> Any:
        function = callee.function
        if len(arrays) != len(function.params):
            raise CastFails("wrong number of arguments")
        self.sizes: Sizes = dict(callee.sizes)
        given = list(zip(function.params, arrays, strict=True))
        for param, array in given:
            bind(param.info, array, self.sizes)
        for param, array in given:
            check(param.info, array, self.sizes)
        _check_ranges(function, self.sizes, callee.sizes)
        values = {**callee.values, **dict(given)}
        self._owner = function
        return self._sequence(function.body, values)

    def _sequence(self, body: ir.SeqExpr, values: dict[ir.GraphVar, Any]) -> Any:
        for binding in (b for block in body.blocks for b in block.bindings):
            if isinstance(binding, ir.MatchCast):
                value = self._value(binding.value, values)
                before = dict(self.sizes)
                bind(binding.pattern, value, self.sizes)
                _check_ranges(self._owner, self.sizes, before)
                check(binding.pattern, value, self.sizes)
                self._agreed(binding.var, value)
                values[binding.var] = value
            elif isinstance(binding, ir.VarBinding):
                value = values[binding.var] = self._value(binding.value, values)
                self._agreed(binding.var, value)
        return self._value(body.body, values)

    def _agreed(self, var: ir.GraphVar, value: Any) -> None:
        try:
            check(var.info, value, self.sizes)
        except CastFails as failure:
            raise NotAsAnnotated(f"{var.name}: {failure}") from failure
        except Undefined:  # an annotation that the evaluation does not cover
            pass

    def _branch(self, value: ir.If, values: dict[ir.GraphVar, Any]) -> Any:
        sizes = dict(self.sizes)
        chosen = bool(self._value(value.condition, values))
        branch = value.then_branch if chosen else value.else_branch
        result = self._sequence(branch, dict(values))
        self.sizes = sizes
        return result

    def _value(self, value: ir.GraphExpr, values: dict[ir.GraphVar, Any]) -> Any:
        if isinstance(value, ir.GraphVar):
            return values[value]
        if isinstance(value, ir.Constant):
            return value.data
        if isinstance(value, ir.TupleExpr):
            return tuple(self._value(f, values) for f in value.fields)
        if isinstance(value, ir.TupleGetItem):
            return self._value(value.tuple_value, values)[value.index]
        if isinstance(value, ir.ShapeExpr):
            return Shape([number(d, self.sizes) for d in value.values])
        if isinstance(value, ir.PrimValue):
            return number(value.value, self.sizes)
        if isinstance(value, ir.GraphCall) and isinstance(value.op, ir.OpRef):
            return self._call(value, value.op.name, values)
        if isinstance(value, ir.GraphFunction):
            attrs = inherited_bounds(value.attrs, self._owner.attrs)
            return Function(value.replace(attrs=attrs), dict(self.sizes), dict(values))
        if isinstance(value, ir.GlobalVar):
            return Function(self._named(value), {}, {})
        if isinstance(value, ir.GraphCall):
            return self._function_call(value, values)
        if isinstance(value, ir.If):
            return self._branch(value, values)
        raise Undefined(f"a {type(value).__name__}")

    def _named(self, value: ir.GlobalVar) -> ir.GraphFunction:
        function = self.module[value.name]
        if not isinstance(function, ir.GraphFunction):
            raise Undefined("a tensor program as a value")
        return function

    def _function_call(self, call: ir.GraphCall, values: dict[ir.GraphVar, Any]) -> Any:
        """Call a function; check its arguments and result against its annotations."""
        callee = self._value(call.op, values)
        if not isinstance(callee, Function):
            raise Undefined("a call of another value")
        inner = Evaluation(self.module)
        result = inner._function(callee, [self._value(a, values) for a in call.args])
        check(callee.function.ret_info, result, inner.sizes)
        return result

    def _call(self, call: ir.GraphCall, name: str, values: dict[ir.GraphVar, Any]) -> Any:
        if name == "call_tir":
            return self._program(call, values)
        args = [self._value(a, values) for a in call.args]
        if name == "shape_of":
            return Shape(args[0].shape)
        row = OPERATORS.get(name)
        if row is None:
            raise Undefined(name)
        attrs = {**row.attrs, **{k: self._attribute(v) for k, v in call.attrs.items()}}
        arrays: list[Any] = []
        for arg in args:
            if isinstance(arg, Shape):
                attrs["shape"] = list(arg.values)
            else:
                arrays += arg if isinstance(arg, tuple) else [arg]
        with np.errstate(all="ignore"):
            result = row.oracle(*arrays, **attrs)
        if isinstance(result, (tuple, list)):
            return tuple(cast("Sequence[Any]", result))
        return cast("Array", np.asarray(result))

    def _attribute(self, value: Any) -> Any:
        if isinstance(value, ir.Expr):
            return number(value, self.sizes)
        if isinstance(value, (list, tuple)):
            items = [self._attribute(v) for v in cast("Sequence[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        return value

    def _program(self, call: ir.GraphCall, values: dict[ir.GraphVar, Any]) -> Any:
        """Call a tensor program; results have the shapes of its own buffers."""
        target = call.args[0]
        assert isinstance(target, ir.GlobalVar)
        callee = self.module[target.name]
        if not isinstance(callee, ir.PrimFunc):
            raise Undefined("call_tir of a graph function")
        args = self._value(call.args[1], values)
        scalars = self._value(call.args[2], values).values if len(call.args) > 2 else ()
        buffers = callee.buffers
        mapped = dict(callee.buffer_map)
        sizes: Sizes = dict(
            zip([p for p in callee.params if p not in mapped], scalars, strict=True)
        )
        for buffer, array in zip(buffers, args, strict=False):
            bind(ir.TensorInfo(buffer.shape, buffer.dtype), array, sizes)
        for buffer, info in zip(buffers[len(args) :], call.out_info, strict=False):
            # The call states sizes that no argument determines: `n` of a program that fills n rows.
            for dim, stated in zip(buffer.shape, dims(info) or (), strict=False):
                if isinstance(dim, ir.Var) and dim not in sizes:
                    sizes[dim] = number(stated, self.sizes)
        for buffer, array in zip(buffers, args, strict=False):
            check(ir.TensorInfo(buffer.shape, buffer.dtype), array, sizes)
        outs = [
            np.zeros([number(d, sizes) for d in b.shape], b.dtype.numpy())
            for b in buffers[len(args) :]
        ]
        given = iter([*(np.array(a) for a in args), *outs])
        numbers = iter(scalars)
        order = [next(given) if p in mapped else next(numbers) for p in callee.params]
        interpret(callee, *order)
        return outs[0] if len(outs) == 1 else tuple(outs)
