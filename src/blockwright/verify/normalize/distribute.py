"""Distribute a loop over several statements into one loop per statement.

    for x in range(count):                     for x in range(count):
        for l in range(m):                         for l in range(m):
            B[x * m + l] = …           →               B[x * m + l] = …
        for l in range(m):                     for x in range(count):
            C[x * m + l] = B[x * m + l]            for l in range(m):
                                                       C[x * m + l] = B[x * m + l]

Only statement instances of different iterations are reordered. That is legal if different
iterations access different elements of every buffer that the loop writes. This holds if the
iteration number is a digit of all accesses to the buffer on some common axis:
`index // base = x`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.normalize.quotients import Quotients, hard_parts
from blockwright.verify.polynomial import Indeterminate, Polynomial, of_atom

Access = tuple[ir.Buffer, tuple[ir.Expr, ...], bool]
"""A buffer, the position as a function of loops, and whether it is written."""


def distributed(func: ir.PrimFunc, minimum: Mapping[ir.Var, int]) -> ir.PrimFunc:
    """Distribute the loops of a program whose index expressions need it.

    Args:
        minimum: size → its smallest value.
    """
    return func.replace(body=_Distribute(Quotients(minimum)).stmt(func.body))


class _Distribute:
    def __init__(self, known: Quotients) -> None:
        self.known = known

    def stmt(self, stmt: ir.Stmt) -> Any:
        if isinstance(stmt, ir.For):
            return self._loop(stmt)
        return stmt.map_children(self._below)

    def _below(self, node: Any) -> Any:
        if isinstance(node, ir.Block):
            return node.map_children(self._below)
        return self.stmt(node) if isinstance(node, ir.Stmt) else node

    def _loop(self, node: ir.For) -> ir.Stmt:
        if ir.is_const_int(node.min, 0):
            self.known.bound(node.loop_var, self.known.poly(node.extent))
        result = node.replace(body=self.stmt(node.body))
        hard = [p for p in hard_parts(result.body) if ir.uses_var(p, node.loop_var)]
        seq = result.body
        if not (hard or hard_parts(node.extent)) or not isinstance(seq, ir.SeqStmt):
            return result
        if node.thread is not None or not ir.is_const_int(node.min, 0):
            return result
        if not self._independent(self.known.of_variable(node.loop_var), seq):
            return result
        loops: list[ir.Stmt] = []
        for part in seq.seq:
            own = ir.Var(node.loop_var.name, node.loop_var.type)
            loops.append(
                result.replace(loop_var=own, body=ir.substitute(part, {node.loop_var: own}))
            )
        return ir.SeqStmt(tuple(loops))

    def _independent(self, number: Indeterminate, body: ir.Stmt) -> bool:
        """Whether different iterations access different elements of every written buffer."""
        accesses: list[Access] = []
        if not self._collect(body, {}, accesses):
            return False
        own = {b for block in ir.blocks(body) for b in block.alloc_buffers}  # fresh per execution
        written = {buffer for buffer, _, writes in accesses if writes} - own
        by_buffer: dict[ir.Buffer, list[tuple[ir.Expr, ...]]] = {}
        for buffer, indices, _ in accesses:
            if buffer in written:
                by_buffer.setdefault(buffer, []).append(indices)
        return all(self._told_apart(number, result) for result in by_buffer.values())

    def _told_apart(self, number: Indeterminate, accesses: list[tuple[ir.Expr, ...]]) -> bool:
        for axis in range(len(accesses[0])):
            polys = [self.known.poly(indices[axis]) for indices in accesses]
            base, _ = polys[0].parted(number)
            if base.terms and all(self._is_digit(number, poly, base) for poly in polys):
                return True
        return False

    def _is_digit(self, number: Indeterminate, poly: Polynomial, base: Polynomial) -> bool:
        if number in base.atoms() or any(a.kind != "size" for a in base.atoms()):
            return False
        digits = self.known.digits(poly, base)
        return digits is not None and digits[0] == of_atom(number)

    def _collect(
        self, node: ir.Node, values: Mapping[ir.Var, ir.Expr], found: list[Access]
    ) -> bool:
        """Collect all accesses below, with iterators replaced; False if some are unknown."""
        match node:
            case ir.For():
                if ir.is_const_int(node.min, 0):
                    self.known.bound(node.loop_var, self.known.poly(node.extent))
                parts = (node.min, node.extent, node.body)
                return all(self._collect(c, values, found) for c in parts)
            case ir.BlockRealize():
                block = node.block
                if block.match_buffers or not self._collect(node.predicate, values, found):
                    return False
                bound = {
                    it.var: ir.substitute(value, dict(values))
                    for it, value in zip(block.iter_vars, node.iter_values, strict=True)
                }
                inside = [p for p in (block.init, block.body) if p is not None]
                return all(self._collect(p, {**values, **bound}, found) for p in inside)
            case ir.BufferLoad() | ir.BufferStore():
                at = tuple(ir.substitute(i, dict(values)) for i in node.indices)
                found.append((node.buffer, at, isinstance(node, ir.BufferStore)))
                parts = [c for c in node.children() if not isinstance(c, ir.Buffer)]
                return all(self._collect(c, values, found) for c in parts)
            case ir.SeqStmt() | ir.IfThenElse() | ir.LetStmt():
                return all(self._collect(c, values, found) for c in node.children())
            case ir.Expr():  # an address may reach more than one element
                plain = node.dtype.is_int or node.dtype.is_float or node.dtype.is_bool
                parts = [c for c in node.children() if isinstance(c, ir.Expr)]
                return plain and all(self._collect(c, values, found) for c in parts)
            case _:
                return False
