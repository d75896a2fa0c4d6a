"""FFI values in host programs: objects, function values, and calls that take or return them.

    y = R.call_packed("f", x, obj)    T.call_object(y, "f", 0, T.tensor(x[…]), T.object_value(obj))
    f = R.make_closure(cls.g, (x,))   T.make_closure(f, "g", 1, T.tensor(x[…]))
    z = R.invoke_closure(f, (a,))     T.call_object(z, f, 0, T.tensor(a[…]))

Each value that is an object has a slot, which owns it until the function returns, on every path. A
tensor that a call returns is copied from its slot to the planned memory of the value.

Packed functions take tuples and shapes as FFI arrays and shapes. Function values, which are mostly
closures, take and return the fields of tuples and the sizes of shapes one by one, as entries do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from blockwright import ir
from blockwright.passes.host.signature import Fields, HostSignature, is_boxed, leaves
from blockwright.support import GraphError

_HANDLE, _STATUS = ir.dtype_of("handle"), ir.dtype_of("int32")
_ZERO = ir.const(0, "int32")
_CALLS = frozenset({"make_closure", "invoke_closure", "call_packed", "call_pure_packed"})


class ObjectSteps:
    """Emits the steps of one host program that handle FFI values.

    Arguments:
        steps: where statements are added; it is read at each use.
        pointer: the address of a value; view: a tensor as an argument of a packed function.
        fields: the fields of tuples; depth: calls that are active in a callee.
    Attributes:
        slots: those of the program, which are declared around its body.
    """

    def __init__(
        self,
        add: Callable[[ir.Stmt], None],
        pointer: Callable[[ir.GraphExpr], ir.Expr],
        view: Callable[[ir.GraphExpr], ir.Expr],
        fields: Fields,
        depth: ir.Expr,
    ) -> None:
        self._add, self._pointer, self._view = add, pointer, view
        self._fields, self._depth = fields, depth
        self.slots: list[ir.Var] = []

    def slot(self, name: str) -> ir.Var:
        """A new slot."""
        var = ir.Var(name, _HANDLE)
        self.slots.append(var)
        return var

    def around(self, body: ir.Stmt) -> ir.Stmt:
        """The body with the slots declared."""
        for var in reversed(self.slots):
            body = ir.LetStmt(var, ir.Call("object_slot", (), _HANDLE), body)
        return body

    def copy(self, out: ir.Expr, value: ir.Expr) -> None:
        self._emit("copy_object", out, value)

    def load(self, out: ir.GraphExpr, slot: ir.Expr, name: str) -> None:
        """Copy the tensor in a slot to the memory of a value."""
        self._emit("load_object", self._view(out), slot, ir.StringImm(name))

    def check(self, slot: ir.Expr, info: ir.Info | None, name: str) -> None:
        """Check the value in a slot against what an annotation states of it.

        The sizes of tensors are checked where they are copied to memory, by `load`.
        Raises: GraphError BW407 for sizes and numbers that are not read.
        """
        if isinstance(info, ir.TensorInfo):
            dtype = "" if info.dtype is None else info.dtype.name
            self._emit_check(slot, "tensor", info.rank, name, dtype)
        elif isinstance(info, ir.CallableInfo):
            self._emit_check(slot, "function", 0, name)
        elif isinstance(info, ir.TupleInfo):
            self._emit_check(slot, "tuple", 0, name)
        elif isinstance(info, (ir.ShapeInfo, ir.PrimInfo)):
            self._emit_check(slot, _number_kind(info, name), 0, name)

    def _emit_check(
        self, slot: ir.Expr, kind: str, number: int, name: str, dtype: str = ""
    ) -> None:
        texts = ir.StringImm(kind), ir.StringImm(dtype)
        self._emit("check_object", slot, *texts, ir.const(number, "int32"), ir.StringImm(name))

    def call(
        self, call: ir.GraphCall, var: ir.GraphVar, signatures: Mapping[str, HostSignature]
    ) -> None:
        """Emit a call for which `is_object_call` holds."""
        extra = [scalar_argument(v) for v in call.attrs.values()]
        name = call.op.name if isinstance(call.op, ir.OpRef) else ""
        if isinstance(call.op, ir.ExternFunc):
            self._packed_call(call.op, call.args, extra, var)
        elif name == "make_closure":
            assert isinstance(call.args[0], ir.GlobalVar)
            self._closure(call, signatures[call.args[0].name], var)
        elif name == "invoke_closure":
            self._packed_call(call.args[0], [call.args[1]], extra, var)
        else:
            self._packed_call(call.args[0], call.args[1:], extra, var)

    def _closure(self, call: ir.GraphCall, callee: HostSignature, out: ir.GraphVar) -> None:
        captured = list(self._flat([call.args[1]]))
        count = ir.const(len(callee.params) - len(captured), "int32")
        name = ir.StringImm(callee.name)
        self._emit("make_closure", self._pointer(out), name, count, *captured)

    def _packed_call(
        self,
        function: ir.GraphExpr,
        args: Sequence[ir.GraphExpr],
        extra: Sequence[ir.Expr],
        var: ir.GraphVar,
    ) -> None:
        if isinstance(function, ir.ExternFunc):
            given = [self._packed(arg) for arg in args]
            self._call(ir.StringImm(function.name), [*given, *extra], var, flat=False)
        else:
            given = [*self._flat(args), *extra]
            self._call(self._pointer(function), given, var, flat=True)

    def _call(
        self, function: ir.Expr, args: Sequence[ir.Expr], var: ir.GraphVar, *, flat: bool
    ) -> None:
        outs = leaves(var, self._fields)
        single = var not in self._fields or (flat and len(outs) == 1)
        own = single and is_boxed(outs[0].info)
        slot = self._pointer(outs[0]) if own else self.slot(f"{var.name}_object")
        self._emit("call_object", slot, function, self._depth, *args)
        if own:
            self.check(slot, outs[0].info, var.name)
            return
        if single and isinstance(outs[0].info, (ir.ShapeInfo, ir.PrimInfo)):
            self.check(slot, outs[0].info, var.name)
        elif single:
            self.load(outs[0], slot, var.name)
        else:
            self._store(outs if flat else self._fields[var], slot, var.name)
        self._emit("clear_object", slot)

    def _store(self, outs: Sequence[ir.GraphExpr], slot: ir.Expr, name: str) -> None:
        """Store the items of an FFI array, which are as many."""
        self._emit_check(slot, "tuple", 0, name)
        count = self.slot(f"{name}_count")
        whole = ir.Call("object_value", (slot,), _HANDLE)
        self._emit("call_object", count, ir.StringImm("ffi.ArraySize"), _ZERO, whole)
        self._emit_check(count, "count", len(outs), name)
        for index, out in enumerate(outs):
            inner = isinstance(out, ir.GraphVar) and out in self._fields
            own = is_boxed(out.info) and not inner
            item = self._pointer(out) if own else self.slot(f"{name}_item{index}")
            args = (whole, ir.const(index, "int64"))
            self._emit("call_object", item, ir.StringImm("ffi.ArrayGetItem"), _ZERO, *args)
            if inner:
                assert isinstance(out, ir.GraphVar)
                self._store(self._fields[out], item, f"{name}_{index}")
            elif own:
                self.check(item, out.info, f"field {index} of {name}")
            else:
                self.load(out, item, f"field {index} of {name}")
            if not own:
                self._emit("clear_object", item)

    # ------------------------------------------------------------------------------ arguments
    def _flat(self, values: Sequence[ir.GraphExpr]) -> Iterator[ir.Expr]:
        """Arguments of a function value."""
        for value in values:
            for leaf in leaves(value, self._fields):
                if isinstance(leaf.info, ir.ShapeInfo):
                    yield from self._sizes(leaf.info)
                else:
                    yield self._packed(leaf)

    def _packed(self, value: ir.GraphExpr) -> ir.Expr:
        """A value as an argument of a packed function."""
        info = value.info
        if isinstance(value, ir.StringValue):
            return ir.StringImm(value.value)
        if isinstance(info, ir.PrimInfo) and info.value is not None:
            return _number(info.value)
        if isinstance(info, ir.ShapeInfo):
            return self._made("ffi.Shape", self._sizes(info))
        if isinstance(value, ir.TupleExpr):
            return self._made("ffi.Array", [self._packed(f) for f in value.fields])
        if isinstance(value, ir.GraphVar) and value in self._fields:
            return self._made("ffi.Array", [self._packed(f) for f in self._fields[value]])
        if not is_boxed(info):
            return self._view(value)
        return ir.Call("object_value", (self._pointer(value),), _HANDLE)

    def _sizes(self, info: ir.ShapeInfo) -> list[ir.Expr]:
        if info.values is None:
            raise GraphError(
                "a shape that is passed to a function has no known values",
                code="BW407",
                help="match_cast it to a shape of symbols",
            )
        return [_number(v) for v in info.values]

    def _made(self, function: str, args: Sequence[ir.Expr]) -> ir.Expr:
        """An object that a function of the FFI makes."""
        slot = self.slot(function.rpartition(".")[2].lower())
        self._emit("call_object", slot, ir.StringImm(function), _ZERO, *args)
        return ir.Call("object_value", (slot,), _HANDLE)

    def _emit(self, op: str, *args: ir.Expr) -> None:
        self._add(ir.Evaluate(ir.Call(op, args, _STATUS)))


def other_kind(name: str) -> GraphError:
    """The error for a value that is an object on one path and a tensor on another."""
    return GraphError(
        f"{name}: one path to a result gives a tensor of known size, another an object or a value "
        "of unknown size",
        code="BW435",
        help="annotate the result of a recursive function, or match_cast the value to the tensor "
        "that it is, in its branch",
    )


def is_object_call(call: ir.GraphCall) -> bool:
    """Whether a call takes or returns FFI values."""
    known = isinstance(call.op, ir.OpRef) and call.op.name in _CALLS
    return known or isinstance(call.op, ir.ExternFunc)


def scalar_argument(value: Any) -> ir.Expr:
    """Convert an attribute to a packed argument: floats as float64, integers as int64."""
    if isinstance(value, str):
        return ir.StringImm(value)
    if isinstance(value, float):
        return ir.const(value, "float64")
    return ir.as_expr(value, ir.dtype_of("int64"))


def _number_kind(info: ir.ShapeInfo | ir.PrimInfo, name: str) -> str:
    """The kind of a size or number that a function returns. Raises: GraphError BW407."""
    known = info.values if isinstance(info, ir.ShapeInfo) else info.value
    if known is not None:
        raise GraphError(
            f"{name}: compiled code does not read the sizes or numbers of an object",
            code="BW407",
            help="let the function return them as a tensor, and name them: "
            "R.match_cast(R.tensor_to_shape(sizes), R.Shape((n,)))",
        )
    if isinstance(info, ir.ShapeInfo):
        return "shape"
    return "bool" if info.dtype.is_bool else "float" if info.dtype.is_float else "int"


def _number(value: ir.Expr) -> ir.Expr:
    """A number as a packed argument: floats as float64, integers as int64."""
    kind = "float64" if value.dtype.is_float else "bool" if value.dtype.is_bool else "int64"
    return ir.cast_to(value, ir.dtype_of(kind))
