"""Split buffer axes of product size: `A[a * m + b]` with `n * m` elements becomes `A[a, b]`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockwright import ir
from blockwright.verify.normalize.quotients import Quotients, hard_parts
from blockwright.verify.polynomial import Polynomial

Access = ir.BufferLoad | ir.BufferStore
Split = tuple[int, Polynomial]
"""An axis, and the extent of the inner of its two parts."""


def split_axes(func: ir.PrimFunc, known: Quotients) -> ir.PrimFunc:
    """Split the axes of internal buffers that are always accessed by two digits."""
    if not hard_parts(func.body) or not _bind(func.body, known, {}):
        return func
    accesses: dict[ir.Buffer, list[Access]] = {}
    for node in ir.walk(func.body):
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)):
            accesses.setdefault(node.buffer, []).append(node)
    blocks = ir.blocks(func.body)
    views = {view.source.buffer for block in blocks for view in block.match_buffers}
    chosen: dict[ir.Buffer, Split] = {}
    for buffer in dict.fromkeys(b for block in blocks for b in block.alloc_buffers):
        if buffer not in views and not buffer.strides:
            result = _split(buffer, accesses.get(buffer, ()), known)
            if result is not None:
                chosen[buffer] = result
    return func.replace(body=_Split(chosen, known)(func.body)) if chosen else func


def _bind(node: ir.Node, known: Quotients, seen: dict[ir.Var, Polynomial]) -> bool:
    """Record the ranges of all loops and iterators; False if one has several ranges."""
    pairs: list[tuple[ir.Var, ir.Expr, ir.Expr]] = []
    if isinstance(node, ir.For):
        pairs = [(node.loop_var, node.min, node.extent)]
    elif isinstance(node, ir.Block):
        pairs = [(it.var, it.dom.min, it.dom.extent) for it in node.iter_vars]
    for var, low, extent in pairs:
        if ir.is_const_int(low, 0):
            poly = known.poly(extent)
            if seen.setdefault(var, poly) != poly:
                return False
            known.bound(var, poly)
    below = (c for c in node.children() if isinstance(c, (ir.Stmt, ir.Block)))
    return all(_bind(child, known, seen) for child in below)


def _split(buffer: ir.Buffer, accesses: Sequence[Access], known: Quotients) -> Split | None:
    for axis, size in enumerate(buffer.shape):
        indices = [access.indices[axis] for access in accesses]
        for base in dict.fromkeys(b for i in indices for b in _bases(i, known)):
            count = known.poly(size).over(base)
            if count is None or count.value == 1:
                continue
            if all(_digits(known, i, base) is not None for i in indices):
                return axis, base
    return None


def _digits(
    known: Quotients, index: ir.Expr, base: Polynomial
) -> tuple[Polynomial, Polynomial] | None:
    """Split an index into its two digits, or return None.

    `a * m + b - 2` splits into `a` and `b - 2` if `0 <= b - 2 < m`. That cannot always be proved
    here, because the conditions around a read are unknown (`b < 2` may select something else).
    Linear parts are therefore accepted unproved: `safety` later proves that the access lies within
    the new axis of `m` elements, and within it the digits of a number are unique.
    """
    result = known.digits(known.poly(index), base)
    if result is None:
        parts = known.taken_out(known.poly(index), base)
        result = parts if all(map(_is_linear, parts)) else None
    return result


def _is_linear(poly: Polynomial) -> bool:
    return all(
        len(product) <= 1 and all(a.kind in ("var", "size") for a in product)
        for product in poly.terms
    )


def _bases(index: ir.Expr, known: Quotients) -> Iterator[Polynomial]:
    """The factors that variables are multiplied by."""
    if hard_parts(index):
        poly = known.poly(index)
        for atom in poly.atoms():
            factor, _ = poly.parted(atom)
            if atom.kind != "size" and factor.value is None:
                yield factor


class _Split(ir.Mutator):
    def __init__(self, chosen: dict[ir.Buffer, Split], known: Quotients) -> None:
        super().__init__()
        self.chosen, self.known = chosen, known

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        if node not in self.chosen:
            return self.descend(node)
        axis, base = self.chosen[node]
        count = self.known.poly(node.shape[axis]).over(base)
        assert count is not None
        parts = (self.known.expression(count), self.known.expression(base))
        shape = (*node.shape[:axis], *parts, *node.shape[axis + 1 :])
        return node.replace(shape=shape, axis_separators=())

    def _indices(self, node: Access) -> tuple[ir.Expr, ...]:
        result = tuple(map(self, node.indices))
        if node.buffer not in self.chosen:
            return result
        axis, base = self.chosen[node.buffer]
        digits = _digits(self.known, node.indices[axis], base)
        assert digits is not None
        return (*result[:axis], *map(self.known.expression, digits), *result[axis + 1 :])

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(
            buffer=self(node.buffer), indices=self._indices(node), predicate=predicate
        )

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(
            buffer=self(node.buffer),
            value=self(node.value),
            predicate=predicate,
            indices=self._indices(node),
        )
