"""Split fused loops over symbolic sizes into their digits.

    for f in range(n * m):                      for a in range(n):
        A[f // m, f % m] = …            →           for b in range(m):
                                                        A[a, b] = …

Block iterators are split likewise. A loop over `f` and the two loops over its digits run the same
iterations in the same order. Loops that do not have this form are unchanged. Split loops are
joined again (`untile`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.normalize.axes import split_axes
from blockwright.verify.normalize.distribute import distributed
from blockwright.verify.normalize.interchange import gathered
from blockwright.verify.normalize.quotients import INDEX, Quotients, Simplify, hard_parts
from blockwright.verify.normalize.untile import Digits, Tiles
from blockwright.verify.polynomial import Indeterminate, Polynomial

ROUNDS = 12
"""Maximum number of rewrite rounds; splitting an iterator can enable splitting its loop."""


def simple(func: ir.PrimFunc, minimum: Mapping[ir.Var, int]) -> ir.PrimFunc:
    """Rewrite a program to have as few products and quotients of sizes as possible.

    Args:
        minimum: size → its smallest value, at least 1.
    """
    if not _is_distinct(func):
        return func
    digits: set[Digits] = set()
    for _ in range(ROUNDS):
        if not hard_parts(func.body):
            break
        plain = func.replace(body=_NoRegions()(func.body))
        func = next(
            (
                result
                for result in _ways(plain, minimum, digits)
                if not ir.structural_equal(result.body, plain.body)
            ),
            plain,
        )
        if func is plain:
            break
    return split_axes(func, Quotients(minimum))


def _ways(
    func: ir.PrimFunc, minimum: Mapping[ir.Var, int], digits: set[Digits]
) -> Iterator[ir.PrimFunc]:
    """Candidate rewrites of a program, in order of preference.

    Loops are narrowed last, because a narrowed loop may be too short to be merged.
    """
    body = Tiles(minimum, digits).stmt(func.body)
    yield func.replace(body=_Radix(minimum, digits).stmt(body))
    yield gathered(func, minimum)
    yield distributed(func, minimum)
    yield func.replace(body=Tiles(minimum, digits, narrow=True).stmt(func.body))


def _is_distinct(func: ir.PrimFunc) -> bool:
    """Whether each loop and iterator has its own variable, and so a single range."""
    result = [f.loop_var for f in ir.loops(func.body)]
    result += [it.var for block in ir.blocks(func.body) for it in block.iter_vars]
    return len(set(result)) == len(result)


class _NoRegions(ir.Mutator):
    """Drop the declared read and write regions of blocks."""

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        return self.descend(node.replace(reads=(), writes=()))


class _Radix:
    """One top-down pass that splits loops and iterators into digits.

    Attributes:
        digits: pairs of loops that resulted from splitting.
    """

    def __init__(self, minimum: Mapping[ir.Var, int], digits: set[Digits]) -> None:
        self.digits = digits
        self.known = Quotients(minimum)
        self.simplify = Simplify(self.known)

    def stmt(self, stmt: ir.Stmt) -> Any:
        if isinstance(stmt, ir.For):
            return self._loop(stmt)
        if isinstance(stmt, ir.BlockRealize):
            return self._block(stmt)
        return stmt.map_children(
            lambda c: self.stmt(c) if isinstance(c, ir.Stmt) else self.simplify(c)
        )

    # ------------------------------------------------------------------ loops
    def _loop(self, node: ir.For) -> ir.Stmt:
        free = ir.is_const_int(node.min, 0) and not _is_shared(node)
        extent = self.known.poly(node.extent)
        if free and hard_parts(node.body):
            plain = node.kind in (ir.ForKind.SERIAL, ir.ForKind.UNROLLED)
            if plain and extent.value == 1:
                return self.stmt(ir.substitute(node.body, {node.loop_var: node.min}))
            result = self._apart(node, extent)
            if result is not None:
                return self._loop(result)
        if free:
            self.known.bound(node.loop_var, extent)
        return node.replace(extent=self.simplify(node.extent), body=self.stmt(node.body))

    def _apart(self, node: ir.For, extent: Polynomial) -> ir.For | None:
        """Split a loop into two digits if its variable is divided by the lower digit's extent."""
        result = self._digits(node.loop_var, extent, node.body)
        if result is None:
            return None
        high, low, count, base = result
        self.digits.add((high, low))
        body = ir.substitute(node.body, {node.loop_var: self._sum(high, base, low)})
        kind = ir.ForKind.SERIAL if node.kind is ir.ForKind.UNROLLED else node.kind
        lower = (
            None
            if node.thread is None
            else node.thread.replace(
                thread_tag=f"{node.thread.thread_tag}/{self.known.expression(base)!r}"
            )
        )
        inner = ir.For(
            low, node.min, self.known.expression(base), kind, body, lower, node.annotations
        )
        return node.replace(
            loop_var=high, extent=self.known.expression(count), kind=kind, body=inner
        )

    def _digits(
        self, var: ir.Var, extent: Polynomial, inside: ir.Node
    ) -> tuple[ir.Var, ir.Var, Polynomial, Polynomial] | None:
        """(high variable, low variable, their extents) if the variable is divided, else None."""
        atom = self.known.of_variable(var)
        bases = sorted(dict.fromkeys(self._divisors(atom, inside)), key=_size, reverse=True)
        for base in bases:
            count = extent.over(base)
            if count is not None and count.value != 1 and base.value != 1:
                high, low = (ir.Var(f"{var.name}_{k}", INDEX) for k in range(2))
                return high, low, count, base
        return None

    def _divisors(self, atom: Indeterminate, inside: ir.Node) -> Iterator[Polynomial]:
        """The divisors of a variable, and of its quotients by another divisor."""
        for part in hard_parts(inside):
            if not isinstance(part, (ir.FloorDiv, ir.FloorMod)):
                continue
            divided, by = self.known.poly(part.a), self.known.poly(part.b)
            one = divided.atom
            if one is atom:
                yield by
            elif one is not None and one.kind == "//" and one.content[0].atom is atom:
                yield by * one.content[1]

    def _sum(self, high: ir.Var, base: Polynomial, low: ir.Var) -> ir.Expr:
        return ir.Add(ir.Mul(high, self.known.expression(base)), low)

    # ------------------------------------------------------------------ blocks
    def _block(self, node: ir.BlockRealize) -> ir.Stmt:
        block = node.block
        for k, it in enumerate(block.iter_vars):
            if not ir.is_const_int(it.dom.min, 0):
                continue
            extent = self.known.poly(it.dom.extent)
            result = self._digits(it.var, extent, _inside(block))
            if result is not None:
                return self._block(self._iterators(node, k, result))
            bound = self.known.poly(node.iter_values[k]).atom
            smallest = None if bound is None else self.known.extent(bound)
            self.known.bound(it.var, extent if smallest is None else smallest)
        iters = tuple(it.replace(dom=self._range(it.dom)) for it in block.iter_vars)
        views = tuple(m.map_children(self.simplify) for m in block.match_buffers)
        init = None if block.init is None else self.stmt(block.init)
        created = block.replace(
            iter_vars=iters, match_buffers=views, init=init, body=self.stmt(block.body)
        )
        values = tuple(map(self.simplify, node.iter_values))
        return ir.BlockRealize(values, self.simplify(node.predicate), created)

    def _range(self, dom: ir.Range) -> ir.Range:
        return ir.Range(self.simplify(dom.min), self.simplify(dom.extent))

    def _iterators(
        self, node: ir.BlockRealize, k: int, digits: tuple[ir.Var, ir.Var, Polynomial, Polynomial]
    ) -> ir.BlockRealize:
        """Replace a block iterator by its two digits."""
        high, low, count, base = digits
        block, old = node.block, node.block.iter_vars[k]
        changes = {old.var: self._sum(high, base, low)}
        result: list[ir.IterVar] = []
        for var, extent in ((high, count), (low, base)):
            dom = ir.Range(old.dom.min, self.known.expression(extent))
            result.append(ir.IterVar(var, dom, old.iter_type))
        size, value = self.known.expression(base), node.iter_values[k]
        values = [*node.iter_values]
        values[k : k + 1] = [ir.FloorDiv(value, size), ir.FloorMod(value, size)]
        iters = [*block.iter_vars]
        iters[k : k + 1] = result
        inside = ir.substitute(block.replace(iter_vars=()), changes)
        return ir.BlockRealize(
            tuple(values),
            ir.substitute(node.predicate, changes),
            inside.replace(iter_vars=tuple(iters)),
        )


def _size(base: Polynomial) -> tuple[int, int]:
    """Sort key that puts multiples after their divisors."""
    product = max(base.terms, key=len, default=())
    return len(product), base.terms.get(product, 0)


def _is_shared(loop: ir.For) -> bool:
    """Whether a nested loop is bound to the same thread axis."""
    if loop.thread is None:
        return False
    tags = [f.thread.thread_tag for f in ir.loops(loop.body) if f.thread is not None]
    return loop.thread.thread_tag in tags


def _inside(block: ir.Block) -> ir.Node:
    return block.replace(iter_vars=())
