"""Handle products of symbolic sizes: programs whose fused loops run over `batch * sequence`.

isl has no products of symbols. Such a product becomes a separate size, and the divisions that undo
it, `f // sequence` and `f % sequence`, are rewritten to forms without division. There are two
forms, each equivalent to the program:

*digits*: a loop over `n * m` becomes two loops, over `n` and over `m` (`digit_split`).

*lines*: adjacent axes of `n` and `m` elements become one axis of `n * m`; adjacent loops and
iterators are merged likewise, so that `x[f // m, f % m]` becomes `x[f]`.

A program that fits neither form keeps its divisions and is not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from blockwright import ir
from blockwright.verify.affine import constant
from blockwright.verify.normalize.digit_split import simple
from blockwright.verify.verdict import Unknown

Names = dict[ir.Var, str]


class SizeProducts:
    """Products of sizes in two programs, named by their factors."""

    def __init__(self) -> None:
        self.factors: dict[str, tuple[str, ...]] = {}

    def name(self, factors: tuple[str, ...]) -> str:
        """The isl parameter for a product."""
        name = "q" + "".join(sorted(factors))
        self.factors[name] = tuple(sorted(factors))
        return name


class Pair(msgspec.Struct, frozen=True, eq=False):
    """Two programs in a common form, with the isl names of their sizes."""

    before: ir.PrimFunc
    after: ir.PrimFunc
    first: Names
    second: Names
    sizes: SizeProducts


class NamedProducts:
    """A program with its products of sizes replaced by named variables.

    Attributes:
        func: the program.
        names: isl parameter names of sizes, including products.
        pairs: product → its two factors; only products of exactly two sizes.
    """

    def __init__(self, func: ir.PrimFunc, names: Mapping[ir.Var, str], sizes: SizeProducts) -> None:
        rewrite = _Name(names, sizes)
        self.func = rewritten(func, rewrite)
        self.names: Names = {**names, **{v: n for n, v in rewrite.made.items()}}
        by_name = {n: v for v, n in self.names.items()}
        self.pairs: dict[ir.Var, tuple[ir.Var, ir.Var]] = {}
        for name, factors in sizes.factors.items():
            if len(factors) == 2 and all(f in by_name for f in factors):
                result = rewrite.made.get(name)
                if result is None:
                    result = self._add(name)
                self.pairs[result] = (by_name[factors[0]], by_name[factors[1]])

    def _add(self, name: str) -> ir.Var:
        """Add a variable for a product that only the other program contains."""
        result = ir.Var(name, ir.dtype_of("int64"))
        self.names[result] = name
        return result


def forms(
    before: ir.PrimFunc, after: ir.PrimFunc, first: Names, second: Names, minimum: Mapping[str, int]
) -> Iterator[Pair]:
    """Forms of two programs to try in order; only the digits form if there are no products.

    Args:
        minimum: name of a size → its smallest value.
    """
    both = [
        simple(func, {v: minimum[n] for v, n in names.items() if n in minimum})
        for func, names in ((before, first), (after, second))
    ]
    sizes = SizeProducts()
    digits = _named(both[0], both[1], first, second, sizes)
    yield Pair(digits[0].func, digits[1].func, digits[0].names, digits[1].names, sizes)
    sizes = SizeProducts()
    a, b = _named(before, after, first, second, sizes)
    if sizes.factors:
        result = [rewritten(form.func, _Lines(form.pairs)) for form in (a, b)]
        yield Pair(result[0], result[1], a.names, b.names, sizes)


def _named(
    before: ir.PrimFunc, after: ir.PrimFunc, first: Names, second: Names, sizes: SizeProducts
) -> tuple[NamedProducts, NamedProducts]:
    """Name the products of both programs; each also knows the products of the other."""
    for func, names in ((before, first), (after, second)):
        NamedProducts(func, names, sizes)
    return NamedProducts(before, first, sizes), NamedProducts(after, second, sizes)


def rewritten(func: ir.PrimFunc, change: ir.Mutator) -> ir.PrimFunc:
    """Apply a mutator to a function's body and to its parameter buffers."""
    buffers = tuple((handle, change(buffer)) for handle, buffer in func.buffer_map)
    return func.replace(buffer_map=buffers, body=change(func.body))


def _size(expr: ir.Expr) -> ir.Expr:
    """Strip integer width conversions from a size."""
    while isinstance(expr, ir.Cast) and expr.type.is_index:
        expr = expr.value
    return expr


class _Name(ir.Mutator):
    """Replace products of sizes by variables."""

    def __init__(self, names: Mapping[ir.Var, str], sizes: SizeProducts) -> None:
        super().__init__()
        self.names, self.sizes = names, sizes
        self.made: dict[str, ir.Var] = {}

    def rewrite_Mul(self, node: ir.Mul) -> ir.Expr:
        factors: list[str] = []
        number, stack = 1, [node.a, node.b]
        while stack:
            part = _size(stack.pop())
            value = constant(part)
            if isinstance(part, ir.Mul):
                stack += [part.a, part.b]
            elif value is not None:
                number *= value
            elif isinstance(part, ir.Var) and part in self.names:
                factors.append(self.names[part])
            else:
                return self.descend(node)
        if len(factors) < 2:
            return self.descend(node)
        name = self.sizes.name(tuple(factors))
        result: ir.Expr = self.made.setdefault(name, ir.Var(name, ir.dtype_of("int64")))
        return result if number == 1 else ir.Mul(result, ir.const(number, "int64"))


# ------------------------------------------------------------------------------------------- lines
class _Lines(ir.Mutator):
    """Merge adjacent axes, loops and iterators over two sizes."""

    def __init__(self, pairs: Mapping[ir.Var, tuple[ir.Var, ir.Var]]) -> None:
        super().__init__()
        self.products: dict[tuple[ir.Expr, ir.Expr], ir.Var] = {}
        for product, (a, b) in pairs.items():
            self.products[a, b] = self.products[b, a] = product
        self.positions: dict[ir.Buffer, int] = {}
        self.old: dict[ir.Buffer, ir.Buffer] = {}

    def _pair(self, a: ir.Expr, b: ir.Expr) -> ir.Var | None:
        return self.products.get((_size(a), _size(b)))

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        for k in range(node.ndim - 1):
            product = self._pair(node.shape[k], node.shape[k + 1])
            if product is not None and not node.strides:
                self.positions[node] = k
                shape = (*node.shape[:k], product, *node.shape[k + 2 :])
                return node.replace(shape=shape, axis_separators=())
        return self.descend(node)

    def _indices(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        self(buffer)
        result = tuple(map(self, indices))
        k = self.positions.get(buffer)
        if k is None:
            return result
        return (*result[:k], _line(result[k], result[k + 1], buffer.shape[k + 1]), *result[k + 2 :])

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(
            buffer=self(node.buffer),
            predicate=predicate,
            indices=self._indices(node.buffer, node.indices),
        )

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(
            buffer=self(node.buffer),
            value=self(node.value),
            predicate=predicate,
            indices=self._indices(node.buffer, node.indices),
        )

    def rewrite_MatchBufferRegion(self, node: ir.MatchBufferRegion) -> ir.MatchBufferRegion:
        self(node.source.buffer)
        k = self.positions.get(node.source.buffer)
        if k is None:
            return self.descend(node)
        region = tuple(map(self, node.source.region))
        first, second = region[k : k + 2]
        if not (ir.is_const_int(first.extent, 1) and ir.is_const_int(second.extent, 1)):
            raise Unknown(f"the view {node.buffer.name} spans axes of two sizes")
        low = _line(first.min, second.min, node.source.buffer.shape[k + 1])
        joined = ir.Range(low, first.extent)
        source = ir.BufferRegion(self(node.source.buffer), (*region[:k], joined, *region[k + 2 :]))
        return ir.MatchBufferRegion(self(node.buffer), source)

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        inner = node.body
        if not isinstance(inner, ir.For) or inner.kind is not node.kind or node.thread is not None:
            return self.descend(node)
        product = self._pair(node.extent, inner.extent)
        if product is None or not all(ir.is_const_int(f.min, 0) for f in (node, inner)):
            return self.descend(node)
        joined = ir.Var(f"{node.loop_var.name}_{inner.loop_var.name}", ir.dtype_of("int64"))
        self._take_apart(joined, node.loop_var, inner.loop_var, inner.extent)
        return ir.For(joined, node.min, product, node.kind, self(inner.body))

    def _take_apart(self, joined: ir.Var, high: ir.Var, low: ir.Var, count: ir.Expr) -> None:
        """Replace two variables by the digits of a joined variable from here on."""
        count = _size(count)
        self._memo[high] = ir.FloorDiv(joined, count)
        self._memo[low] = ir.FloorMod(joined, count)

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> ir.Stmt:
        values, block = [self(v) for v in node.iter_values], node.block
        iters: list[ir.IterVar] = []
        kept: list[ir.Expr] = []
        k = 0
        while k < len(values):
            it = block.iter_vars[k]
            after = block.iter_vars[k + 1] if k + 1 < len(values) else None
            product = None if after is None else self._pair(it.dom.extent, after.dom.extent)
            if after is None or product is None or not _alike(it, after):
                iters.append(ir.IterVar(it.var, self(it.dom), it.iter_type))
                kept.append(values[k])
                k += 1
                continue
            joined = ir.Var(f"{it.var.name}_{after.var.name}", ir.dtype_of("int64"))
            self._take_apart(joined, it.var, after.var, after.dom.extent)
            zero = ir.const(0, "int64")
            iters.append(ir.IterVar(joined, ir.Range(zero, product), it.iter_type))
            kept.append(_line(values[k], values[k + 1], after.dom.extent))
            k += 2
        plain = block.replace(iter_vars=(), reads=(), writes=())
        result: Any = self.descend(plain)
        return ir.BlockRealize(
            tuple(kept), self(node.predicate), result.replace(iter_vars=tuple(iters))
        )


def _alike(a: ir.IterVar, b: ir.IterVar) -> bool:
    """Whether two iterators can be merged into one."""
    return a.iter_type is b.iter_type and all(ir.is_const_int(it.dom.min, 0) for it in (a, b))


def _line(high: ir.Expr, low: ir.Expr, count: ir.Expr) -> ir.Expr:
    """Simplify `high * count + low` where these are the two digits of one number."""
    count = _size(count)
    a, b = _size(high), _size(low)
    if not (isinstance(a, ir.FloorDiv) and isinstance(b, ir.FloorMod)):
        raise Unknown(f"{high!r}, {low!r} are not the digits of one number")
    if _size(a.b) is count is _size(b.b) and ir.structural_equal(a.a, b.a):
        return a.a
    raise Unknown(f"{high!r}, {low!r} are not the digits of one number")
