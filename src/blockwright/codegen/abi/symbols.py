"""Symbolic sizes at a function's entry: bind them to extents, solve, compare, check bounds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from blockwright.analysis.sizes import linear_in, nonzero_divisors
from blockwright.codegen.abi.checks import Checker, extent_text, plain
from blockwright.codegen.llvm import types
from blockwright.codegen.llvm.context import FunctionContext, Options
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.expr import ExprEmitter
from blockwright.codegen.llvm.ffi import DLTENSOR
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import (
    Buffer,
    DType,
    Expr,
    IntImm,
    Sorts,
    Var,
    build,
    cast_to,
    collect,
    structural_equal,
)
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import BuildError

_INT64 = DType("int", 64)


class Symbols:
    """Values of symbolic variables, and extents still to be compared."""

    def __init__(self, e: FunctionEmitter, check: Checker) -> None:
        self.e, self.check = e, check
        self.context = FunctionContext(e, Options(), Sorts(frozenset()))  # sizes only, no values
        self.known = self.context.variables
        self._expressions = ExprEmitter(self.context)
        self._origin: dict[Var, str] = {}
        self._pending: list[tuple[str, int, Expr, Value]] = []
        self._solved: set[Var] = set()
        self._nonzero: list[Expr] = []
        self._solved: set[Var] = set()

    def bind_shape(self, buffer: Buffer, extents: Sequence[Value], tensor: Value) -> None:
        """Compare constant extents and known symbols; bind new symbols."""
        for axis, (extent, result) in enumerate(zip(buffer.shape, extents, strict=True)):
            self._bind(axis, extent, result)

    def _bind(self, axis: int, extent: Expr, found: Value) -> None:
        if isinstance(extent, IntImm):
            self.check.extent(axis, found, int_const(extent.value), str(extent.value))
        elif isinstance(extent, Var) and extent not in self.known:
            if extent.dtype.bits < 64:
                self.check.fits(found, extent.dtype)
            self.known[extent] = types.cast(self.e, found, _INT64, extent.dtype)
            self._origin[extent] = f"{self.check.subject.split(' of ')[0]} dimension {axis}"
        elif isinstance(extent, Var):
            text, code = self.expectation(extent)
            self.check.extent(axis, found, self.index(extent), text, code)
        else:
            self._pending.append((self.check.subject, axis, extent, found))

    def expectation(self, extent: Expr) -> tuple[str, str]:
        """The expected value of a known extent, as text, and the error code of a mismatch."""
        if not isinstance(extent, Var):
            return extent_text(extent), "BW704"
        return f"`{extent.name}` (from {self._origin.get(extent, 'a scalar argument')})", "BW709"

    def bind_strides(self, buffer: Buffer, extents: Sequence[Value], tensor: Value) -> None:
        """Bind and compare strides in elements; a tensor without strides is compact. The stride of
        an axis with fewer than two elements may be anything: NumPy reports 0 for empty arrays.
        Other strides are not negative, which the code relies on."""
        e = self.e
        empty = self._is_empty(extents)
        table = DLTENSOR.at(e, tensor).load("strides")
        present = e.compare("ne", table, Value("ptr", "null"))
        compact = int_const(1)
        for axis in reversed(range(buffer.ndim)):
            step = compact
            result = e.choose(
                present, lambda a=axis: e.load("i64", e.offset(table, 8 * a), 8), lambda s=step: s
            )
            compact = e.binary("mul", compact, extents[axis])
            stride = buffer.strides[axis]
            unused = e.binary("or", empty, e.compare("eq", extents[axis], int_const(1)))
            if isinstance(stride, Var) and stride not in self.known:
                negative = e.compare("slt", result, int_const(0))
                ignored = e.binary("and", unused, negative)
                self._bind_stride(axis, stride, e.select(ignored, int_const(0), result))
                continue
            fine = e.binary("or", unused, e.compare("eq", result, self.index(stride)))
            text = f"expected stride {plain(extent_text(stride))} in dimension {axis}, got %lld"
            self.check.require(fine, "BW706", text, "pass an array with that stride", result)

    def _bind_stride(self, axis: int, stride: Var, found: Value) -> None:
        fine = self.e.compare("sge", found, int_const(0))
        text = f"expected a stride of at least 0 in dimension {axis}, got %lld"
        self.check.require(fine, "BW706", text, "pass a contiguous copy", found)
        if stride.dtype.bits < 64:
            self.check.fits(found, stride.dtype)
        self.known[stride] = types.cast(self.e, found, _INT64, stride.dtype)

    def _is_empty(self, extents: Sequence[Value]) -> Value:
        empty = self.e.compare("eq", extents[0], int_const(0))
        for extent in extents[1:]:
            result = self.e.compare("eq", extent, int_const(0))
            empty = self.e.binary("or", empty, result)
        return empty

    def solve(self) -> None:
        """Solve for variables that occur only in extents of the form `a * n + b`."""
        for subject, axis, extent, result in self._pending:
            unknown = [v for v in collect(extent, Var) if v not in self.known]
            if len(unknown) != 1:
                continue
            linear = linear_in(extent, unknown[0])
            if linear is None or linear[0] == 0:
                continue
            self._solve_one(subject, axis, extent, result, unknown[0], linear)

    def _solve_one(
        self,
        subject: str,
        axis: int,
        extent: Expr,
        found: Value,
        var: Var,
        linear: tuple[int, int],
    ) -> None:
        e, (factor, rest) = self.e, linear
        moved = e.binary("sub", found, int_const(rest))
        whole = e.compare("eq", e.binary("srem", moved, int_const(factor)), int_const(0))
        self.check.require_about(
            subject,
            whole,
            "BW704",
            f"expected dimension {axis} to be {plain(extent_text(extent))}, got %lld",
            f"no integer {var.name} gives this size",
            found,
        )
        quotient = e.binary("sdiv", moved, int_const(factor))
        self.known[var] = types.cast(e, quotient, _INT64, var.dtype)
        self._solved.add(var)

    def check_expressions(self) -> None:
        """Compare extents such as `2 * n`, once all symbols are known."""
        for subject, axis, extent, result in self._pending:
            self.check.subject = subject
            self._require_known(extent)
            self.require_divisors(subject, axis, extent)
            self.check.extent(axis, result, self.index(extent), extent_text(extent))

    def require_divisors(self, subject: str, axis: int, extent: Expr) -> None:
        """Check that an extent such as `6 // n` does not divide by 0."""
        for holds in nonzero_divisors([extent]):
            if any(structural_equal(holds, other) for other in self._nonzero):
                continue
            self._nonzero.append(holds)
            self._require_known(holds)
            text = f"dimension {axis}, {plain(extent_text(extent))}: integer division by zero"
            self.check.require_about(
                subject,
                self._expressions.value(holds),
                "BW716",
                text,
                "pass tensors of other sizes",
            )

    def _require_known(self, expr: Expr) -> None:
        missing = [v.name for v in collect(expr, Var) if v not in self.known]
        if missing:
            raise BuildError(
                f"size {extent_text(expr)} does not determine {', '.join(missing)}",
                code="BW623",
                help="use the variable alone as an extent of some buffer, or make it "
                "a scalar parameter",
            )

    def check_scalars(self, attrs: Mapping[str, Any], scalars: Sequence[Var]) -> None:
        """Check declared bounds of integer parameters, which have none by default."""
        ends = (
            (LOWER_BOUND, "sge", "at least", "pass a larger number"),
            (UPPER_BOUND, "sle", "at most", "pass a smaller number"),
        )
        for var in scalars:
            for bound, relation, words, remedy in ends:
                end = dict(attrs.get(bound, {})).get(var.name)
                if end is None or not var.dtype.is_int:
                    continue
                value = self.index(var)
                fine = self.e.compare(relation, value, int_const(int(end)))
                text = f"expected {words} {int(end)}, got %lld"
                subject = f"argument `{var.name}`"
                self.check.require_about(subject, fine, "BW708", text, remedy, value)

    def check_bounds(self, attrs: Mapping[str, Any], symbols: Sequence[Var]) -> None:
        """Check declared bounds of symbolic sizes; sizes that were solved for may be negative."""
        e = self.e
        for var in symbols:
            value = self.index(var)
            low = max(0, int(dict(attrs.get(LOWER_BOUND, {})).get(var.name, 0)))
            high = dict(attrs.get(UPPER_BOUND, {})).get(var.name)
            where = self._origin.get(var)
            subject = f"size `{var.name}`" + (f" ({where})" if where else "")
            if low or var in self._solved:
                fine = e.compare("sge", value, int_const(low))
                text = f"expected at least {low}, got %lld"
                self.check.require_about(subject, fine, "BW708", text, "pass larger tensors", value)
            if high is not None:
                fine = e.compare("sle", value, int_const(int(high)))
                text = f"expected at most {high}, got %lld"
                remedy = "pass smaller tensors, or compile with a higher bound"
                self.check.require_about(subject, fine, "BW708", text, remedy, value)

    def value(self, var: Var) -> Value:
        """The value of a symbol, in the type that the function expects."""
        if var not in self.known:
            self._require_known(var)
        return self.known[var]

    def index(self, expr: Expr) -> Value:
        """An integer expression over known symbols, in 64 bits."""
        self._require_known(expr)
        return self._expressions.index(expr)

    def byte_size(self, buffer: Buffer) -> Value:
        """Bytes from the first element to the end of the last; 0 if there is none."""
        unit = build.const(buffer.dtype.nbytes * buffer.dtype.lanes, "int64")
        extents = [cast_to(extent, "int64") for extent in buffer.shape]
        dense = self.index(functools.reduce(build.mul, extents, unit))
        if not buffer.strides:
            return dense
        reach: Expr = build.const(1, "int64")
        for extent, stride in zip(extents, buffer.strides, strict=True):
            reach = build.add(reach, build.mul(build.sub(extent, 1), cast_to(stride, "int64")))
        spread = self.index(build.mul(reach, unit))
        return self.e.select(self.e.compare("eq", dense, int_const(0)), dense, spread)
