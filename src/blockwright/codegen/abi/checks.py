"""Argument checks of an entry: each is a test and cold code that formats and raises the error."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.codegen.abi.names import dtype_name, kind_name
from blockwright.codegen.abi.tensors import is_contiguous, tensor_data, tensor_of
from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import Buffer, DType, Expr, IntImm, Node, Var
from blockwright.ir.node import show
from blockwright.ir.printer.graph import ScriptPrinter

_MESSAGE_SIZE = 768
_FIRST_PAGE = 4096
OVERLAPS = "it is written and overlaps"
ONE_COPY = "pass a copy of one of them"


_OTHER_SIZE = "pass that size, or compile for a symbolic one (dynamic_shapes of a PyTorch model)"


def _conversion(dtype: DType) -> str:
    """The remedy for an argument of another type."""
    if dtype.lanes == 1 and dtype.bits < 8 and not dtype.is_bool:
        kind = "int8" if dtype.kind == "int" else "uint8"
        return f"pass elements of {dtype} in bytes, as a tensor of {kind}"
    if dtype.lanes == 1:
        return f"convert the tensor to {dtype} first"
    return f"pass a DLPack tensor of {dtype.lanes} lanes; NumPy and PyTorch have no such type"


class Checker:
    """Emits checks into an entry; `begin` sets the argument that the next checks refer to."""

    def __init__(self, e: FunctionEmitter, function: str) -> None:
        self.e, self.function = e, function
        self.subject = function
        self._label: Value | None = None
        self._text = e.stack(_MESSAGE_SIZE, 16)

    def begin(self, label: str) -> None:
        self.subject, self._label = f"{label} of {self.function}", None

    def begin_named(self, label: Value) -> None:
        """As `begin`, with a label that is only known at run time."""
        self._label = label

    def require(self, holds: Value, code: str, message: str, help: str, *numbers: Value) -> None:
        """Raise unless `holds`; `message` is a printf format for i64 and string `numbers`."""
        e = self.e
        good, bad = e.fresh("ok"), e.fresh("bad")
        e.branch_if(holds, good, bad, likely=True)
        e.label(bad)
        self._fail(code, f"{message}\nhelp: {plain(help)}", *numbers)
        e.label(good)

    def require_about(
        self, subject: str, holds: Value, code: str, message: str, help: str, *numbers: Value
    ) -> None:
        """As `require`, with another subject."""
        before, self.subject = self.subject, subject
        self.require(holds, code, message, help, *numbers)
        self.subject = before

    def _fail(self, code: str, message: str, *numbers: Value) -> None:
        """Emit an error about the current subject."""
        if self._label is None:
            self.fail(f"{code}: {plain(self.subject)}: {message}", code, *numbers)
        else:
            about = f"%s of {plain(self.function)}"
            self.fail(f"{code}: {about}: {message}", code, self._label, *numbers)

    def fail(self, format: str, code: str, *numbers: Value) -> None:
        """Emit code that formats a message, raises it and returns."""
        e = self.e
        size = int_const(_MESSAGE_SIZE)
        e.call(
            "i32",
            "snprintf",
            self._text,
            size,
            e.module.string(format),
            *numbers,
            variadic="ptr, i64, ptr",
        )
        kind = e.module.string(ffi.error_kind(code))
        e.ret(e.call("i32", "bw_raise", kind, self._text))

    # ---------------------------------------------------------------- checks
    def count(self, given: Value, names: Sequence[str], results: int) -> Value:
        """Check the argument count: one per parameter, optionally followed by memory for all
        results. Returns whether that memory is present."""
        e = self.e
        fine = e.compare("eq", given, int_const(len(names), "i32"))
        lent = e.compare("eq", given, int_const(len(names) + results, "i32"))
        listed = f" ({', '.join(names)})" if names else ""
        remedy = "pass each parameter once"
        if results:
            what = "the result" if results == 1 else f"all {results} results"
            remedy += f"; memory for {what} may follow"
        self.require_about(
            self.function,
            e.binary("or", fine, lent),
            "BW701",
            f"expected {len(names)} argument{'s' * (len(names) != 1)}{plain(listed)}, got %lld",
            remedy,
            e.convert("sext", given, "i64"),
        )
        return lent

    def _kind_name(self, slot: Value) -> Value:
        """The kind of an argument, for messages."""
        return kind_name.call(self.e, ffi.ANY.at(self.e, slot).load("type"))

    def tensor(self, slot: Value, buffer: Buffer) -> tuple[Value, list[Value]]:
        """Check a packed value against the buffer's type and rank; return tensor and extents."""
        e = self.e
        tensor = tensor_of.call(e, slot)
        self.is_tensor(tensor, slot, buffer)
        self.dtype(tensor, buffer)
        self.rank(tensor, buffer)
        self.device(tensor)
        shape = ffi.DLTENSOR.at(e, tensor).load("shape")
        return tensor, [e.load("i64", e.offset(shape, 8 * a), 8) for a in range(buffer.ndim)]

    def data(self, tensor: Value, extents: Sequence[Value], buffer: Buffer) -> Value:
        """Check alignment and presence of the tensor's data; return the data pointer."""
        data = tensor_data.call(self.e, tensor)
        self.aligned(data, extents, buffer)
        self.present(data, extents)
        return data

    def is_tensor(self, tensor: Value, slot: Value, buffer: Buffer) -> None:
        e = self.e
        good, bad = e.fresh("ok"), e.fresh("bad")
        e.branch_if(e.compare("ne", tensor, Value("ptr", "null")), good, bad, likely=True)
        e.label(bad)
        text = (
            f"expected a tensor of {buffer.dtype} with shape {plain(shape_text(buffer))}, "
            "got %s\nhelp: pass an array that supports DLPack"
        )
        self._fail("BW702", text, self._kind_name(slot))
        e.label(good)

    def kind(self, kind: Value, allowed: Sequence[int], expected: str, slot: Value) -> None:
        e = self.e
        fine = int_const(0, "i1")
        for one in allowed:
            fine = e.binary("or", fine, e.compare("eq", kind, int_const(one, "i32")))
        good, bad = e.fresh("ok"), e.fresh("bad")
        e.branch_if(fine, good, bad, likely=True)
        e.label(bad)
        text = f"expected {plain(expected)}, got %s\nhelp: convert the value before the call"
        self._fail("BW702", text, self._kind_name(slot))
        e.label(good)

    def fits(self, value: Value, dtype: DType) -> None:
        """Check that an integer fits its parameter's type; calls pass signed 64-bit integers."""
        if dtype.bits >= 64 and dtype.kind == "int":
            return
        e = self.e
        if dtype.bits >= 64:
            self.require(
                e.compare("sge", value, int_const(0)),
                "BW702",
                f"%lld does not fit {dtype} ({dtype.min_value} to {dtype.max_value})",
                "pass a number in range",
                value,
            )
            return
        low = e.compare("sge", value, int_const(dtype.min_value))
        high = e.compare("sle", value, int_const(dtype.max_value))
        self.require(
            e.binary("and", low, high),
            "BW702",
            f"%lld does not fit {dtype} ({dtype.min_value} to {dtype.max_value})",
            "pass a number in range",
            value,
        )

    def dtype(self, tensor: Value, buffer: Buffer) -> None:
        e = self.e
        result = ffi.DLTENSOR.at(e, tensor).load("dtype")
        expected = int_const(ffi.dlpack_dtype(buffer.dtype.name), "i32")
        good, bad = e.fresh("ok"), e.fresh("bad")
        e.branch_if(e.compare("eq", result, expected), good, bad, likely=True)
        e.label(bad)
        name = dtype_name.call(e, result)
        bits = e.binary("and", e.binary("lshr", result, int_const(8, "i32")), int_const(255, "i32"))
        lanes = e.binary("lshr", result, int_const(16, "i32"))
        text = (
            f"expected {buffer.dtype}, got %s (%d bits, %d lanes)\n"
            f"help: {_conversion(buffer.dtype)}"
        )
        self._fail("BW703", text, name, bits, lanes)
        e.label(good)

    def rank(self, tensor: Value, buffer: Buffer) -> None:
        e = self.e
        result = ffi.DLTENSOR.at(e, tensor).load("ndim")
        fine = e.compare("eq", result, int_const(buffer.ndim, "i32"))
        self.require(
            fine,
            "BW704",
            f"expected {buffer.ndim} dimensions, shape {plain(shape_text(buffer))}, "
            "got %lld dimensions",
            "reshape the tensor first",
            e.convert("sext", result, "i64"),
        )

    def device(self, tensor: Value) -> None:
        e = self.e
        result = ffi.DLTENSOR.at(e, tensor).load("device_type")
        fine = e.compare("eq", result, int_const(ffi.DEVICE_CPU, "i32"))
        self.require(
            fine,
            "BW705",
            "expected CPU memory (device type 1), got device type %lld",
            "move the tensor to the CPU first",
            e.convert("sext", result, "i64"),
        )

    def contiguous(self, tensor: Value) -> None:
        fine = is_contiguous.call(self.e, tensor)
        self.require(
            fine,
            "BW706",
            "expected a contiguous row-major tensor, got other strides",
            "pass a contiguous copy",
        )

    def aligned(self, data: Value, extents: Sequence[Value], buffer: Buffer) -> None:
        nbytes = buffer.dtype.nbytes
        if nbytes == 1:
            return
        e = self.e
        address = e.convert("ptrtoint", data, "i64")
        low = e.binary("and", address, int_const(nbytes - 1))
        fine = e.compare("eq", low, int_const(0))
        for extent in extents:
            fine = e.binary("or", fine, e.compare("eq", extent, int_const(0)))
        self.require(
            fine,
            "BW706",
            f"expected memory aligned to {nbytes} bytes, got an address %lld bytes off",
            "pass an aligned copy",
            low,
        )

    def present(self, data: Value, extents: Sequence[Value]) -> None:
        """Check that the tensor has memory: an address in the first page is an offset from null."""
        e = self.e
        fine = e.compare("uge", e.convert("ptrtoint", data, "i64"), int_const(_FIRST_PAGE))
        for extent in extents:
            fine = e.binary("or", fine, e.compare("eq", extent, int_const(0)))
        self.require(
            fine,
            "BW702",
            "expected a tensor with memory, got one without",
            "pass a tensor whose elements are in memory, outside of FakeTensorMode",
        )

    def extent(
        self, axis: int, found: Value, expected: Value, text: str, code: str = "BW704"
    ) -> None:
        """Check that dimension `axis` has the expected size, which the program writes as `text`."""
        fine = self.e.compare("eq", found, expected)
        fixed = text.lstrip("-").isdigit()
        said = "%lld" if fixed else f"{plain(text)} = %lld"
        self.require(
            fine,
            code,
            f"expected dimension {axis} to be {said}, got %lld",
            _OTHER_SIZE if fixed else "pass tensors whose shapes agree",
            expected,
            found,
        )

    def disjoint(self, a: tuple[Value, Value], b: tuple[Value, Value], other: str) -> None:
        """Check that two memory ranges (start, bytes) do not overlap."""
        self.require(self.apart(a, b), "BW706", f"{OVERLAPS} {plain(other)}", ONE_COPY)

    def apart(self, a: tuple[Value, Value], b: tuple[Value, Value]) -> Value:
        """Whether two memory ranges (start, bytes) are disjoint."""
        e = self.e
        (start_a, size_a), (start_b, size_b) = a, b
        low_a, low_b = (e.convert("ptrtoint", s, "i64") for s in (start_a, start_b))
        a_first = e.compare("ule", e.binary("add", low_a, size_a), low_b)
        b_first = e.compare("ule", e.binary("add", low_b, size_b), low_a)
        fine = e.binary("or", a_first, b_first)
        for size in (size_a, size_b):
            fine = e.binary("or", fine, e.compare("eq", size, int_const(0)))
        return fine


def shape_text(buffer: Buffer) -> str:
    """A buffer's shape as it is written in the program."""
    return f"({', '.join(extent_text(d) for d in buffer.shape)})"


def extent_text(extent: Node) -> str:
    if isinstance(extent, IntImm):
        return str(extent.value)
    if isinstance(extent, Var):
        return extent.name
    return ScriptPrinter().dim(extent) if isinstance(extent, Expr) else show(extent)


def plain(text: str) -> str:
    """Escape text for a printf format."""
    return text.replace("%", "%%")
