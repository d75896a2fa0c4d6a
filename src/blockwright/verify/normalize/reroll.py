"""Reroll unrolled stores into a loop, so that one statement is analyzed instead of many.

    C[0, j] = C[0, j] + A[0] * B[j]
    C[1, j] = C[1, j] + A[1] * B[j]      →      for r in range(8):
    …                                               C[r, j] = C[r, j] + A[r] * B[j]

Consecutive stores are rerolled if they differ only in integer constants, each of which grows by its
own constant step. Unrolling the loop yields the same stores in the same order.
"""

from __future__ import annotations

from typing import Any, TypeGuard

import msgspec

from blockwright import ir

LEAST = 4
"""Minimum number of stores to reroll."""
_Place = tuple[int, ir.DType]


class _Numbered(msgspec.Struct, frozen=True, eq=False):
    """A store with its integer constants abstracted.

    Attributes:
        form: the store, with a variable for each constant.
        values: the constants, in order.
    """

    store: ir.BufferStore
    form: ir.Node
    values: tuple[int, ...]


class _Roll(ir.Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.marks: dict[_Place, ir.Var] = {}

    def __call__(self, node: Any) -> Any:
        """Visit statements only: expressions contain no stores."""
        return super().__call__(node) if isinstance(node, ir.Stmt) else node

    def rewrite_LetStmt(self, node: ir.LetStmt) -> ir.Stmt:
        """Keep stores together that use values bound before all of them."""
        if isinstance(node.body, ir.SeqStmt):
            return node.replace(body=self.descend(node.body))
        return self.descend(node)

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        created = self.descend(node)
        if len(created.seq) < LEAST:
            return created
        result: list[ir.Stmt] = []
        run: list[_Numbered] = []
        for stmt in created.seq:
            one = self._numbered(stmt) if isinstance(stmt, ir.BufferStore) else None
            if one is not None and _goes_on(run, one):
                run.append(one)
                continue
            result += self._loop(run)
            run = [] if one is None else [one]
            if one is None:
                result.append(stmt)
        result += self._loop(run)
        return result[0] if len(result) == 1 else created.replace(seq=tuple(result))

    def _numbered(self, store: ir.BufferStore) -> _Numbered:
        values: list[int] = []

        def visit(node: ir.Node) -> ir.Node:
            if isinstance(node, ir.Buffer):
                return node
            if not _is_number(node):
                return node.map_children(visit)
            values.append(node.value)
            place = len(values), node.type
            return self.marks.setdefault(place, ir.Var(f"c{len(values)}", node.type))

        return _Numbered(store, visit(store), tuple(values))

    def _loop(self, run: list[_Numbered]) -> list[ir.Stmt]:
        if len(run) < LEAST:
            return [one.store for one in run]
        row = ir.Var("row", ir.dtype_of("int64"))
        steps = iter(_steps(run[0], run[1]))

        def visit(node: ir.Node) -> ir.Node:
            if isinstance(node, ir.Buffer):
                return node
            if not _is_number(node):
                return node.map_children(visit)
            step = next(steps)
            if step == 0:
                return node
            return ir.Add(node, ir.Mul(ir.cast_to(row, node.type), ir.IntImm(step, node.type)))

        body = visit(run[0].store)
        assert isinstance(body, ir.BufferStore)
        first, count = ir.const(0, "int64"), ir.const(len(run), "int64")
        return [ir.For(row, first, count, ir.ForKind.SERIAL, body)]


def rolled(stmt: ir.Stmt) -> ir.Stmt:
    """Reroll the unrolled loops in a statement."""
    return _Roll()(stmt)


def _is_number(node: ir.Node) -> TypeGuard[ir.IntImm]:
    return isinstance(node, ir.IntImm) and node.type.is_int and node.type.bits >= 32


def _steps(first: _Numbered, second: _Numbered) -> tuple[int, ...]:
    return tuple(b - a for a, b in zip(first.values, second.values, strict=True))


def _goes_on(run: list[_Numbered], one: _Numbered) -> bool:
    """Whether a store is the next iteration of a run of stores."""
    if not run or not ir.structural_equal(run[0].form, one.form):
        return False
    steps = _steps(run[-1], one)
    return any(steps) if len(run) == 1 else steps == _steps(run[0], run[1])
