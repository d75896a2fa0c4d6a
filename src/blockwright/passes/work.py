"""Estimate the work of a tensor program for given sizes, for profiles.

The program is counted before scheduling, when every loop runs once per element: floating-point
operations of all statements, and for each parameter the bytes accessed, each at most once.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.arith import simplify

_OPERATIONS = (ir.Add, ir.Sub, ir.Mul, ir.Div, ir.Min, ir.Max)


class Work(msgspec.Struct, frozen=True):
    """Floating-point operations, bytes of parameters accessed, and the part of these written."""

    flops: int
    bytes: int
    written: int = 0


def work_of(func: ir.PrimFunc, sizes: Mapping[ir.Var, ir.Expr]) -> Work:
    """The work of one call; `sizes` maps symbols to numbers. Sizes left symbolic count as 0."""
    counter = _Counter(sizes)
    counter.visit(func.body, 1)
    touched = written = 0
    for buffer in func.buffers:
        whole = 1
        for dim in buffer.shape:
            whole *= counter.number(dim)
        touched += min(whole, counter.accesses.get(buffer, 0)) * buffer.dtype.nbytes
        written += min(whole, counter.stores.get(buffer, 0)) * buffer.dtype.nbytes
    return Work(counter.flops, touched, written)


class _Counter:
    def __init__(self, sizes: Mapping[ir.Var, ir.Expr]) -> None:
        self.sizes = sizes
        self.flops = 0
        self.accesses: dict[ir.Buffer, int] = {}
        self.stores: dict[ir.Buffer, int] = {}

    def number(self, size: ir.Expr) -> int:
        return ir.const_int(simplify(ir.substitute(size, self.sizes))) or 0

    def visit(self, stmt: ir.Stmt, times: int) -> None:
        """Count a statement that runs `times` times; initial values of reductions are ignored."""
        if isinstance(stmt, ir.For):
            self.visit(stmt.body, times * self.number(stmt.extent))
        elif isinstance(stmt, ir.SeqStmt):
            for part in stmt.seq:
                self.visit(part, times)
        elif isinstance(stmt, ir.BlockRealize):
            self.visit(stmt.block.body, times)
        elif isinstance(stmt, ir.BufferStore):
            self._statement(stmt, times)
        else:
            for child in stmt.children():
                if isinstance(child, ir.Stmt):
                    self.visit(child, times)

    def _statement(self, store: ir.BufferStore, times: int) -> None:
        self.accesses[store.buffer] = self.accesses.get(store.buffer, 0) + times
        self.stores[store.buffer] = self.stores.get(store.buffer, 0) + times
        for node in ir.walk(store):
            if isinstance(node, ir.BufferLoad):
                self.accesses[node.buffer] = self.accesses.get(node.buffer, 0) + times
            elif isinstance(node, _OPERATIONS) or (
                isinstance(node, ir.Call) and ir.op_row(node.op).elementwise
            ):
                self.flops += times * node.dtype.is_float
