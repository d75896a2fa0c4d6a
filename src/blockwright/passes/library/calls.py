"""How a `call_dps_library` becomes calls of C functions: the tensor program of the call.

Before:  y = R.call_dps_library("lib.scale", (x,), out_sinfo=R.Tensor((n, 4)), factor=2.0)
After:   y = R.call_tir(cls.lib_scale, (x,), out_sinfo=R.Tensor((n, 4)))
         @T.prim_func lib_scale(x, y):
             status = T.call_extern("lib:scale", T.tensor(x), T.tensor(y), T.float64(2))
             assert status == 0

A library function is an `Emit`: it receives a `LibraryCall` and returns the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.support import GraphError
from blockwright.target import Target

_HANDLE, _INT = ir.dtype_of("handle"), ir.dtype_of("int32")
Emit = Callable[["LibraryCall"], ir.Stmt]


class LibraryCall(msgspec.Struct, frozen=True):
    """One call of a library function that is being compiled.

    Attributes:
        library, function: names, as in `library.function`.
        inputs, outputs: contiguous buffers of the tensors, whose shapes may be symbolic.
        attrs: the scalar attributes of the call, in order.
        used: symbols of the library that the statements call so far.
    """

    library: str
    function: str
    inputs: tuple[ir.Buffer, ...]
    outputs: tuple[ir.Buffer, ...]
    attrs: dict[str, Any]
    target: Target
    used: list[str]

    def call(self, symbol: str, *args: Any) -> ir.Expr:
        """A call of a C function with the result type int.

        Arguments: expressions of the C parameters' types; ints are int32, buffers `DLTensor *`,
            texts `const char *`. A function without a result is called in the same way.
        """
        if symbol not in self.used:
            self.used.append(symbol)
        values = [self._argument(arg) for arg in args]
        name = ir.StringImm(f"{self.library}:{symbol}")
        return ir.Call("call_extern", (name, *values), _INT)

    def _argument(self, value: Any) -> ir.Expr:
        if isinstance(value, ir.Buffer):
            return ir.tensor_of(value)
        return ir.StringImm(value) if isinstance(value, str) else ir.as_expr(value, _INT)

    def checked(self, call: ir.Expr) -> ir.Stmt:
        """A statement that fails the program's call (BW725) unless the C function returns 0."""
        status = ir.Var("status", _INT)
        zero = ir.compare(ir.EQ, status, ir.const(0, "int32"))
        message = f"BW725: {self.library}.{self.function} failed with the status %d"
        return ir.LetStmt(status, call, ir.AssertStmt(zero, message, (status,)))

    def address(self, buffer: ir.Buffer, *indices: ir.Expr) -> ir.Expr:
        """Pointer to an element of a buffer; to its first one without indices."""
        place = ir.BufferLoad(buffer, indices or _zeros(buffer))
        return ir.Call("address_of", (place,), _HANDLE)

    def view(
        self, buffer: ir.Buffer, shape: Sequence[ir.Expr], body: Callable[[ir.Buffer], ir.Stmt]
    ) -> ir.Stmt:
        """Statements that see the elements of a buffer in another shape of the same size."""
        seen = ir.Buffer(f"{buffer.name}_view", buffer.dtype, tuple(shape))
        return ir.DeclBuffer(seen, self.address(buffer), body(seen))

    def error(self, rule: str, help: str | None = None) -> GraphError:
        """The error of a call whose tensors or attributes the function does not take."""
        name = f"{self.library}.{self.function}"
        return GraphError(f"{name}: {rule}", code="BW424", help=help)


def _zeros(buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    return tuple(ir.const(0, "int64") for _ in buffer.shape)


def c_function(symbol: str) -> Emit:
    """A library function `int symbol(DLTensor *in, …, DLTensor *out, …, scalars…)`.

    Its tensors are contiguous and on the host. The attributes of a call follow in order: integers
    and bools as `int64_t`, floats as `double`, texts as `const char *`. A result other than 0 fails
    the call of the model with BW725.
    """

    def emit(call: LibraryCall) -> ir.Stmt:
        scalars = [_scalar(call, name, value) for name, value in call.attrs.items()]
        return call.checked(call.call(symbol, *call.inputs, *call.outputs, *scalars))

    return emit


def _scalar(call: LibraryCall, name: str, value: Any) -> ir.Expr | str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return ir.const(value, "float64")
    if isinstance(value, (int, ir.Expr)):
        return ir.cast_to(ir.as_expr(value, ir.dtype_of("int64")), ir.dtype_of("int64"))
    raise call.error(
        f"the attribute {name} is {type(value).__name__}", "pass numbers, bools and texts"
    )
