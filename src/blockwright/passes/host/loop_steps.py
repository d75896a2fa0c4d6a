"""Loops in host programs.

    last = R.scan(cls.step, h, xs, carried=1, memory=True, over=1)      # h, second set

    copy(h → first)
    for p in range(n // 2):
        step(first, xs[2 * p] → second)
        step(second, xs[2 * p + 1] → first)
    if n % 2:
        step(first, xs[n - 1] → second)
        copy(second → first)

A `while_loop` alternates in the same way; the condition is computed for each set. Elements are read
and written where they are in their tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from blockwright import ir
from blockwright.graph.loops import MAX_STEPS, Loop, loop_parts
from blockwright.passes.host.size_order import exact_bytes
from blockwright.passes.rewrite import called_operator

_I64, _HANDLE = ir.dtype_of("int64"), ir.dtype_of("handle")
Values = Sequence[ir.GraphExpr]


class Host(Protocol):
    """What loops need of the host program that is built."""

    pointers: dict[ir.GraphExpr, ir.Expr]
    steps: list[ir.Stmt]

    def bytes_of(self, value: ir.GraphExpr) -> ir.Buffer:
        """The memory of a tensor as bytes."""
        ...

    def flag(self, value: ir.GraphExpr) -> ir.Expr:
        """The element of a tensor of one bool."""
        ...

    def call_function(self, call: ir.GraphCall, outs: list[ir.GraphExpr]) -> None: ...

    def copy_value(self, value: ir.GraphExpr, out: ir.GraphExpr) -> None: ...


def loop_steps(host: Host, call: ir.GraphCall, outs: list[ir.GraphExpr]) -> None:
    """Emit a loop, whose results are `outs`."""
    steps = _Steps(host, loop_parts(call), outs)
    if called_operator(call) == "scan":
        steps.scan()
    else:
        steps.while_loop()


class _Steps:
    def __init__(self, host: Host, parts: Loop, outs: list[ir.GraphExpr]) -> None:
        self.host, self.parts = host, parts
        count = len(parts.carried)
        self.first, self.rest = outs[:count], outs[count:]

    def scan(self) -> None:
        parts, count = self.parts, len(self.first)
        rows = self.rest[: len(self.rest) - count]
        second = self.rest[len(rows) :]
        shape = parts.over[0].tensor_info.shape
        assert shape is not None
        length = shape[0]
        self._copied(parts.carried, self.first)

        def step(before: Values, after: Values, number: ir.Expr) -> ir.Stmt:
            last = ir.sub(length, ir.const(1, _I64))
            at = ir.sub(last, number) if parts.reverse else number
            given = [*before, *(self._element(x, at) for x in parts.over), *parts.others]
            return self._call(parts.step, given, [*after, *(self._element(y, at) for y in rows)])

        number = ir.Var("number", _I64)
        if not count:
            body = step([], [], number)
            self.host.steps.append(
                ir.For(number, ir.const(0, _I64), length, ir.ForKind.SERIAL, body)
            )
            return
        two, one = ir.const(2, _I64), ir.const(1, _I64)
        even = ir.mul(number, two)
        pair = [step(self.first, second, even), step(second, self.first, ir.add(even, one))]
        pairs = ir.floordiv(length, two)
        self.host.steps.append(
            ir.For(number, ir.const(0, _I64), pairs, ir.ForKind.SERIAL, ir.seq(pair))
        )
        odd = ir.compare(ir.EQ, ir.floormod(length, two), one)
        last = [step(self.first, second, ir.sub(length, one)), self._copy(second, self.first)]
        self.host.steps.append(ir.IfThenElse(odd, ir.seq(last)))

    def while_loop(self) -> None:
        parts = self.parts
        holds, step = parts.functions
        *second, flag = self.rest
        self._copied(parts.carried, self.first)

        def stepped(before: Values, after: Values) -> ir.Stmt:
            return self._call(step, [*before, *parts.others], after)

        def checked(values: Values) -> ir.Stmt:
            return self._call(holds, [*values, *parts.others], [flag])

        goes_on = self.host.flag(flag)
        goes_on = ir.logical_not(goes_on) if parts.until else goes_on
        again = ir.seq([stepped(second, self.first), checked(self.first)])
        ends = self._copy(second, self.first)
        number = ir.Buffer("steps", _I64, (ir.const(1, _I64),), scope="local")
        zero, one = ir.const(0, _I64), ir.const(1, _I64)
        count = ir.BufferLoad(number, (zero,))
        most = ir.const(MAX_STEPS // 2, _I64)  # each iteration takes two
        message = f"{parts.endless}\nhelp: make sure that the recursion ends"
        body = [
            ir.AssertStmt(ir.compare(ir.LT, count, most), message, ()),
            ir.BufferStore(number, ir.add(count, one), (zero,)),
            stepped(self.first, second),
            checked(second),
            ir.IfThenElse(goes_on, again, ends),
        ]
        counted = [
            ir.BufferStore(number, zero, (zero,)),
            checked(self.first),
            ir.While(goes_on, ir.seq(body)),
        ]
        self.host.steps.append(ir.Allocate(number, ir.seq(counted)))

    # -------------------------------------------------------------------------------- statements
    def _emitted(self, emit: Callable[[], None]) -> ir.Stmt:
        """The statements that `emit` adds, as one."""
        host = self.host
        saved, host.steps = host.steps, []
        emit()
        result = ir.seq(host.steps)
        host.steps = saved
        return result

    def _call(self, name: str, args: Values, outs: Values) -> ir.Stmt:
        call = ir.GraphCall(ir.GlobalVar(name), tuple(args))
        return self._emitted(lambda: self.host.call_function(call, list(outs)))

    def _copied(self, values: Values, outs: Values) -> None:
        self.host.steps.append(self._copy(values, outs))

    def _copy(self, values: Values, outs: Values) -> ir.Stmt:
        def copies() -> None:
            for value, out in zip(values, outs, strict=True):
                self.host.copy_value(value, out)

        return self._emitted(copies)

    def _element(self, value: ir.GraphExpr, at: ir.Expr) -> ir.GraphVar:
        """An element along the first axis, in the memory of its tensor."""
        info = value.tensor_info
        assert info.shape is not None
        part = ir.TensorInfo(info.shape[1:], info.dtype, device=info.device)
        result = ir.GraphVar("element", info=part)
        offset = ir.mul(at, exact_bytes(part))
        place = ir.BufferLoad(self.host.bytes_of(value), (offset,))
        self.host.pointers[result] = ir.Call("address_of", (place,), _HANDLE)
        return result
