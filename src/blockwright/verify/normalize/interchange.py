"""Interchange loops so that the parts of one iterator become adjacent.

    for h in range(count):              for h in parallel(count):
        for j in range(k):                  for l in parallel(m):
            for l in range(m):      →           for j in range(k):
                B[h * m + l, j] = …                 B[h * m + l, j] = …

Legality is left to the proof: the moved loops become parallel, and `safety` requires that
iterations of parallel loops are independent. If the iterations of some loops of a nest share no
element that one of them writes, these loops may be moved outermost in any order, provided that the
remaining loops keep their order: each iteration runs the same instances in the same order as
before, and the instances in between access other elements. The moved loops are marked `MOVED`:
unlike for other parallel loops, buffers used only inside them are not assumed to be fresh in each
iteration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.model.privatization import MOVED
from blockwright.verify.normalize.quotients import Quotients, hard_parts
from blockwright.verify.polynomial import Polynomial


def gathered(func: ir.PrimFunc, minimum: Mapping[ir.Var, int]) -> ir.PrimFunc:
    """Interchange loops so that the parts of iterators that need it are adjacent.

    Args:
        minimum: size → its smallest value.
    """
    return func.replace(body=_Gather(Quotients(minimum))(func.body))


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
        """The loops to move outermost, in order; empty if all parts are already adjacent."""
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
        return spatial  # only reduction loops remain inside, without spatial loops between them

    def _parts(self, nest: list[ir.For], value: ir.Expr) -> list[ir.For] | None:
        """The loops summed in a binding, in order of decreasing stride."""
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
    """Whether a loop can be interchanged with the loops above it."""
    inner = loop.thread is None and ir.is_const_int(loop.min, 0)
    return inner and not any(ir.uses_var(loop.extent, f.loop_var) for f in above)


def _degree(factor: Polynomial) -> tuple[int, int]:
    """Sort key that puts multiples after their divisors."""
    product = max(factor.terms, key=len)
    return len(product), factor.terms[product]
