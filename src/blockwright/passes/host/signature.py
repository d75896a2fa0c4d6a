"""Signatures of host programs: how graph functions take arguments and give results.

    f(x: R.Tensor((n, 4)), s: R.Shape((m,)), t: R.Prim("int64"))  →  f(x_handle, s_0, t, out_handle)

A tensor is a buffer; a shape or scalar is one scalar parameter for each dimension; an object or
function is the address of an FFI value. Results that are tensors are the last buffers; a result
that is a parameter updated in place is none of them. Results that are objects are addresses of
slots, which follow the other scalars. A result of a size known only at run time is a handle without
a buffer among the last ones: the program allocates it (`LATE_RESULTS`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.analysis.calling_convention import CallingConvention, calling_convention
from blockwright.ir.attributes import (
    CALL_DEPTH,
    IS_CLOSURE,
    IS_HOST,
    IS_PRIVATE,
    LATE_RESULTS,
    LOWER_BOUND,
    NUM_OUTPUTS,
    OBJECT_PARAMS,
    OBJECT_RESULTS,
    UPPER_BOUND,
)
from blockwright.ops.row import dims_text
from blockwright.passes.size_checks import declared_ends, range_checks
from blockwright.support import GraphError

_HANDLE = ir.dtype_of("handle")


class HostResults(msgspec.Struct, frozen=True):
    """How the results of a host program nest.

    Attributes:
        tree: their structure, as in `runtime.results`; leaves are positions among all results.
        updated: (position of a result, position of the parameter that it is) pairs.
        outputs: the buffers of the other tensors, late ones included.
    """

    tree: Any
    updated: tuple[tuple[int, int], ...] = ()
    outputs: tuple[ir.Buffer, ...] = ()


class HostSignature:
    """Parameters and results of the host program of one graph function.

    Attributes:
        title: the name of the function in messages.
        buffers: parameter → its buffer, for tensors.
        params: variables of the program in order, without results.
        bounded: symbols that are a parameter; their callers check that they are in their range.
        checks: of shape and scalar parameters, which must agree with their annotations.
        outputs: the buffers of results, with their handles; late: those that the program allocates.
        objects: parameter → its variable, for objects and functions.
        slots: result → its slot, for objects and functions; by position among the results.
        closure: whether the program is called through closures.
        depth: the parameter that counts recursive calls; None for other functions.
    """

    def __init__(self, name: str, function: ir.GraphFunction, recursive: bool) -> None:
        # Callers outside call a program of the function's name, which passes the depth.
        self.name = f"{name}.recursive" if recursive else name
        self.title = name
        self.function = function
        self.buffers: dict[ir.GraphVar, ir.Buffer] = {}
        self.objects: dict[ir.GraphVar, ir.Var] = {}
        self.slots: dict[int, ir.Var] = {}
        self.closure = False
        self.params: list[ir.Var] = []
        self.bounded: list[ir.Var] = []
        self.checks: list[ir.Stmt] = []
        self._handles: list[tuple[ir.Var, ir.Buffer]] = []
        for param in function.params:
            self._parameter(param)
        self.depth = ir.Var("depth", ir.dtype_of("int32")) if recursive else None
        self.outputs: dict[ir.Buffer, ir.Var] = {}
        self.late: set[ir.Buffer] = set()

    def _parameter(self, param: ir.GraphVar) -> None:
        info = param.info
        if isinstance(info, ir.ShapeInfo) and info.values is not None:
            for axis, size in enumerate(info.values):
                self._scalar(f"{param.name}_{axis}", size, ir.dtype_of("int64"))
        elif isinstance(info, ir.PrimInfo):
            self._scalar(param.name, info.value, info.dtype)
        elif is_object(info):
            self.objects[param] = ir.Var(param.name, _HANDLE)
            self.params.append(self.objects[param])
        else:
            buffer = self.buffer_like(param, param.name)
            self.buffers[param] = buffer
            self._add(buffer)

    def _scalar(self, name: str, value: ir.Expr | None, dtype: ir.DType) -> None:
        if isinstance(value, ir.Var) and all(value is not p for p in self.params):
            self.params.append(value)
            if value.dtype.is_int:
                self.bounded.append(value)
            return
        var = ir.Var(name, dtype)
        self.params.append(var)
        if value is not None:
            text = dims_text(value).replace("%", "%%")
            message = f"BW704: argument {name} of {self.name} is %d, not {text}\nhelp: pass {text}"
            holds = ir.compare(ir.EQ, var, ir.cast_to(value, dtype))
            self.checks.append(ir.AssertStmt(holds, message, (var,)))

    def _add(self, buffer: ir.Buffer) -> None:
        handle = ir.Var(f"{buffer.name}_handle", _HANDLE)
        self.params.append(handle)
        self._handles.append((handle, buffer))

    def add_outputs(self, values: Sequence[ir.GraphExpr], late: Collection[int] = ()) -> None:
        """Add a buffer or a slot for each result that needs one; `late` are positions."""
        for position, value in enumerate(values):
            name = f"out{position}" if len(values) > 1 else "out"
            if is_boxed(value.info):
                self.slots[position] = ir.Var(f"{name}_slot", _HANDLE)
            else:
                buffer = self.buffer_like(value, name)
                self.outputs[buffer] = ir.Var(f"{name}_handle", _HANDLE)
                if position in late:
                    self.late.add(buffer)

    def argument_position(self, param: ir.GraphVar) -> int:
        """The position of a tensor parameter among the arguments of the host program."""
        return [v.name for v in self.params].index(f"{self.buffers[param].name}_handle")

    def buffer_like(self, value: ir.GraphExpr, name: str) -> ir.Buffer:
        """A buffer for a tensor. Raises: GraphError BW407, BW413 if it cannot be one."""
        info = value.info
        if not isinstance(info, ir.TensorInfo):
            raise GraphError(
                f"{name} of {self.name} is {info!r}: compiled functions accept and return tensors",
                code="BW413",
            )
        if info.shape is None or info.dtype is None:
            raise GraphError(
                f"{name} of {self.name} is {info!r}: parameters and results of "
                "compiled functions have a shape and an element type",
                code="BW407",
                help="annotate a parameter with a shape of symbols, such as "
                'R.Tensor(("n", "m"), "float32"); match_cast a result',
            )
        return ir.Buffer(name, info.dtype, info.shape)

    def program(self, body: ir.Stmt, private: bool) -> ir.PrimFunc:
        """The host program with a body."""
        results = [(handle, b) for b, handle in self.outputs.items() if b not in self.late]
        extra = () if self.depth is None else (self.depth,)
        slots = self.slots.values()
        params = (*self.params, *extra, *slots, *self.outputs.values())
        attrs: dict[str, Any] = {
            key: {**self.function.attrs.get(key, {}), **ends}
            for key, ends in self._ends().items()
            if ends or key in self.function.attrs
        }
        attrs |= {"global_symbol": self.name, NUM_OUTPUTS: len(results), IS_HOST: True}
        if private:
            attrs[IS_PRIVATE] = True
        if self.late:
            attrs[LATE_RESULTS] = {self.outputs[b].name: _described(b) for b in self.late}
        attrs |= self._object_attributes()
        return ir.PrimFunc(params, (*self._handles, *results), body, attrs)

    def _ends(self) -> dict[str, dict[str, int]]:
        """The bounds of `bounded`, as attributes: calls from outside check declared ones."""
        ranges = {s.name: declared_ends(self.function, s) for s in self.bounded}
        lower, upper = ({name: ends[k] for name, ends in ranges.items()} for k in (0, 1))
        return {LOWER_BOUND: lower, UPPER_BOUND: upper}

    def range_checks(
        self, args: Sequence[ir.GraphExpr], pointer: Callable[[ir.GraphExpr], ir.Expr]
    ) -> Iterator[ir.AssertStmt]:
        """Assertions that the scalars of a call are in the ranges of the symbols they bind."""
        own = [v for v in self.params if all(v is not h for h, _ in self._handles)]
        for var, value in zip(own, self.scalars_of(args, pointer), strict=True):
            if any(var is symbol for symbol in self.bounded):
                yield from range_checks(self.function, self.title, var, value, f"`{var.name}`")

    def _object_attributes(self) -> dict[str, Any]:
        kinds = {
            var.name: "function" if isinstance(param.info, ir.CallableInfo) else "object"
            for param, var in self.objects.items()
        }
        positions = {var.name: position for position, var in self.slots.items()}
        attrs: dict[str, Any] = {OBJECT_PARAMS: kinds} if kinds else {}
        if positions:
            attrs[OBJECT_RESULTS] = positions
        if self.closure:
            attrs[IS_CLOSURE] = True
            if self.depth is not None:
                attrs[CALL_DEPTH] = self.depth.name
        return attrs

    def forwarded(self, inner: HostSignature) -> ir.Stmt:
        """A call of a recursive program with the parameters of this one, and depth 0."""
        convention = self.convention()
        handles = {handle for handle, _ in convention.buffers}
        args = (
            ir.StringImm(inner.name),
            *(address(buffer) for buffer in (*self.buffers.values(), *self.outputs)),
            *(v for v in self.params if v not in handles),
            ir.const(0, "int32"),
            *self.slots.values(),
            *inner.convention().symbols,
        )
        return ir.Evaluate(ir.Call("call_global", args, ir.dtype_of("int32")))

    def convention(self) -> CallingConvention:
        """The calling convention of the program."""
        return calling_convention(self.program(ir.Evaluate(ir.const(0, "int32")), private=True))

    def scalars_of(
        self, args: Sequence[ir.GraphExpr], pointer: Callable[[ir.GraphExpr], ir.Expr]
    ) -> Iterator[ir.Expr]:
        """Values of the scalar parameters in a call with these arguments, in order.

        Arguments: `pointer` gives the addresses of objects.
        """
        for param, arg in zip(self.function.params, args, strict=True):
            if param in self.buffers:
                continue
            if param in self.objects:
                yield pointer(arg)
                continue
            info = arg.info
            values = info.values if isinstance(info, ir.ShapeInfo) else None
            if isinstance(info, ir.PrimInfo) and info.value is not None:
                values = (info.value,)
            if values is None:
                raise GraphError(
                    f"argument {param.name} of {self.name} has no known value",
                    code="BW407",
                    help="match_cast it to a shape of symbols",
                )
            yield from values


def _described(buffer: ir.Buffer) -> tuple[str, tuple[str, ...]]:
    return buffer.dtype.name, tuple(dims_text(dim) for dim in buffer.shape)


def is_boxed(info: ir.Info | None) -> bool:
    """Whether a result with this annotation is an FFI value: an object, or a tensor of unknown size
    or type that a function value or a packed function returns."""
    if isinstance(info, ir.TensorInfo):
        return info.shape is None or info.dtype is None
    return is_object(info)


def is_object(info: ir.Info | None) -> bool:
    """Whether values with this annotation are FFI values: objects and functions."""
    return isinstance(info, (ir.ObjectInfo, ir.CallableInfo))


def address(buffer: ir.Buffer) -> ir.Expr:
    """Pointer to the first element of a buffer."""
    zeros = tuple(ir.const(0, "int64") for _ in buffer.shape)
    return ir.Call("address_of", (ir.BufferLoad(buffer, zeros),), _HANDLE)


Fields = Mapping[ir.GraphVar, tuple[ir.GraphExpr, ...]]


def leaves(value: ir.GraphExpr, fields: Fields) -> list[ir.GraphExpr]:
    """The tensors of a value: itself, or those in a tuple, nested ones included.

    `fields` maps variables that are tuples to their fields.
    """
    if isinstance(value, ir.TupleExpr):
        return [leaf for f in value.fields for leaf in leaves(f, fields)]
    if isinstance(value, ir.GraphVar) and value in fields:
        return [leaf for f in fields[value] for leaf in leaves(f, fields)]
    return [value]


def result_tree(info: ir.Info | None, position: int = 0) -> tuple[Any, int]:
    """The structure of a result, and the number of leaves before the next."""
    if not isinstance(info, ir.TupleInfo):
        return position, position + 1
    items: list[Any] = []
    for field in info.fields:
        tree, position = result_tree(field, position)
        items.append(tree)
    return {"tuple": items}, position


class ResultSlot(ir.GraphExpr, frozen=True, eq=False):
    """Represents a result buffer as a graph value; slots of one buffer are equal."""

    buffer: ir.Buffer

    def __hash__(self) -> int:
        return hash(self.buffer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultSlot) and other.buffer is self.buffer
