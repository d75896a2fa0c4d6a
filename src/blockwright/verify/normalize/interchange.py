"""Loops over parts of one iterator, brought next to each other.

    for h in range(count):              for h in parallel(count):
        for j in range(k):                  for l in parallel(m):
            for l in range(m):      →           for j in range(k):
                B[h * m + l, j] = …                 B[h * m + l, j] = …

Whether that is the same program is asked of the proof: loops that were moved are parallel ones
afterwards, and iterations of parallel loops must not meet (`safety`). Where the iterations of some
loops of a nest touch nothing in common that one of them writes, these loops may be the outermost
ones, in any order, if the others keep theirs: for each of their iterations the same runs in the
same order as before, and what runs in between touches other elements. Buffers that only such a loop
uses are not taken to be fresh in each iteration (`MOVED`), as those of other parallel loops are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.model.privatization import MOVED
from blockwright.verify.normalize.quotients import Quotients, hard_parts
from blockwright.verify.polynomial import Polynomial


def gathered(func: ir.PrimFunc, least: Mapping[ir.Var, int]) -> ir.PrimFunc:
    """A program with the parts of iterators next to each other that need it.

    Args:
        least: size → its least value.
    """
    return func.replace(body=_Gather(Quotients(least))(func.body))


class _Gather(ir.Mutator):
    def __init__(self, known: Quotients) -> None:
        super().__init__()
        self.known = known

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        nest: list[ir.For] = []
        inside: ir.Stmt = node
        while isinstance(inside, ir.For) and _is_free(inside, nest):
            nest.append(inside)
            inside = inside.body
        if len(nest) < 2 or not isinstance(inside, ir.BlockRealize):
            return self.descend(node)
        moved = self._moved(nest, inside)
        order = [*moved, *(loop for loop in nest if loop not in moved)]
        result: Any = self(inside)
        for loop in reversed(order):
            if loop in moved:
                marks = {**loop.annotations, MOVED: True}
                loop = loop.replace(kind=ir.ForKind.PARALLEL, annotations=marks)
            result = loop.replace(body=result)
        return result

    def _moved(self, nest: list[ir.For], inside: ir.BlockRealize) -> list[ir.For]:
        """The loops to put outermost, in their order; none when all parts are together."""
        groups: dict[int, list[ir.For]] = {}
        spatial: list[ir.For] = []
        apart: list[int] = []
        for k, (it, value) in enumerate(
            zip(inside.block.iter_vars, inside.iter_values, strict=True)
        ):
            result = self._parts(nest, value)
            if result is None:
                continue
            groups[k] = result
            if it.iter_type is ir.IterType.SPATIAL:
                spatial += result
            together = result == [loop for loop in nest if loop in result] and (
                nest.index(result[-1]) - nest.index(result[0]) == len(result) - 1
            )
            if hard_parts(value) and not together:
                apart.append(k)
        uses = {
            id(loop): sum(ir.uses_var(v, loop.loop_var) for v in inside.iter_values)
            for loop in nest
        }
        if any(uses[id(loop)] != 1 for loop in spatial):
            return []
        mine = [loop for k in apart for loop in groups[k]]
        if all(loop in spatial for loop in mine):
            return mine
        return spatial  # what is left over are the parts of sums, without others between them

    def _parts(self, nest: list[ir.For], value: ir.Expr) -> list[ir.For] | None:
        """The loops that a binding adds up, the one with the largest factor first."""
        poly = self.known.poly(value)
        result: list[tuple[tuple[int, int], ir.For]] = []
        for loop in nest:
            if ir.uses_var(value, loop.loop_var):
                factor, _ = poly.parted(self.known.of_variable(loop.loop_var))
                if not factor.terms or any(a.kind != "size" for a in factor.atoms()):
                    return None
                result.append((_degree(factor), loop))
        return [loop for _, loop in sorted(result, key=lambda one: one[0], reverse=True)] or None


def _is_free(loop: ir.For, above: list[ir.For]) -> bool:
    """Whether a loop may change places with those above it."""
    inner = loop.thread is None and ir.is_const_int(loop.min, 0)
    return inner and not any(ir.uses_var(loop.extent, f.loop_var) for f in above)


def _degree(factor: Polynomial) -> tuple[int, int]:
    """Larger for what is a multiple."""
    product = max(factor.terms, key=len)
    return len(product), factor.terms[product]
