"""Products of symbolic sizes: programs whose fused loops run over `batch * sequence`.

isl knows no product of symbols. Such a product becomes a size of its own here, and what takes it
apart again, `f // sequence` and `f % sequence`, is brought into a form without division. Each form
means the same as the program:

*digits*: a loop over `n * m`, also one that is split by a number, whose variable is used by its
quotient and remainder only, is two loops, over `n` and over `m`.

*lines*: neighbouring axes of `n` and `m` elements are one axis of `n * m`; neighbouring loops and
iterators are merged likewise, so that `x[f // m, f % m]` is `x[f]`.

What fits neither keeps its divisions, and is not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from blockwright import ir
from blockwright.verify.affine import constant
from blockwright.verify.verdict import Unknown

Names = dict[ir.Var, str]


class Sizes:
    """Products of sizes that two programs form, named by their factors."""

    def __init__(self) -> None:
        self.factors: dict[str, tuple[str, ...]] = {}

    def name(self, factors: tuple[str, ...]) -> str:
        """The parameter that stands for a product."""
        name = "q" + "".join(sorted(factors))
        self.factors[name] = tuple(sorted(factors))
        return name


class Pair(msgspec.Struct, frozen=True, eq=False):
    """Two programs in one form, with the names of their sizes."""

    before: ir.PrimFunc
    after: ir.PrimFunc
    first: Names
    second: Names
    sizes: Sizes


class Form:
    """One program with its products named.

    Attributes:
        func: the program.
        names: sizes, products among them, as parameters of isl.
        pairs: product → its two factors; products of more are not taken apart.
    """

    def __init__(self, func: ir.PrimFunc, names: Mapping[ir.Var, str], sizes: Sizes) -> None:
        rewrite = _Name(names, sizes)
        self.func = rewritten(func, rewrite)
        self.names: Names = {**names, **{v: n for n, v in rewrite.made.items()}}
        by_name = {n: v for v, n in self.names.items()}
        self.pairs: dict[ir.Var, tuple[ir.Var, ir.Var]] = {}
        for name, factors in sizes.factors.items():
            if len(factors) == 2 and all(f in by_name for f in factors):
                made = rewrite.made.get(name)
                if made is None:
                    made = self._add(name)
                self.pairs[made] = (by_name[factors[0]], by_name[factors[1]])

    def _add(self, name: str) -> ir.Var:
        """A product that only the other program forms."""
        made = ir.Var(name, ir.dtype_of("int64"))
        self.names[made] = name
        return made


def forms(before: ir.PrimFunc, after: ir.PrimFunc, first: Names, second: Names) -> Iterator[Pair]:
    """Forms of two programs to try in turn; none other than their own without products."""
    sizes = Sizes()
    for func, names in ((before, first), (after, second)):
        Form(func, names, sizes)  # both programs know the products of either
    if not sizes.factors:
        yield Pair(before, after, first, second, sizes)
        return
    a, b = Form(before, first, sizes), Form(after, second, sizes)
    for change in (_Digits, _Lines):
        made = [rewritten(form.func, change(form.pairs)) for form in (a, b)]
        yield Pair(made[0], made[1], a.names, b.names, sizes)


def rewritten(func: ir.PrimFunc, change: ir.Mutator) -> ir.PrimFunc:
    """A function with its body and the buffers of its parameters rewritten."""
    buffers = tuple((handle, change(buffer)) for handle, buffer in func.buffer_map)
    return func.replace(buffer_map=buffers, body=change(func.body))


def _size(expr: ir.Expr) -> ir.Expr:
    """A size without conversions of its width."""
    while isinstance(expr, ir.Cast) and expr.type.is_int and expr.type.bits >= 32:
        expr = expr.value
    return expr


class _Name(ir.Mutator):
    """Products of sizes become variables."""

    def __init__(self, names: Mapping[ir.Var, str], sizes: Sizes) -> None:
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
        made: ir.Expr = self.made.setdefault(name, ir.Var(name, ir.dtype_of("int64")))
        return made if number == 1 else ir.Mul(made, ir.const(number, "int64"))


# ------------------------------------------------------------------------------------------ digits
class _Digits(ir.Mutator):
    """Loops over a product become two loops."""

    def __init__(self, pairs: Mapping[ir.Var, tuple[ir.Var, ir.Var]]) -> None:
        super().__init__()
        self.pairs = pairs

    def rewrite_For(self, node: ir.For) -> ir.Stmt:
        new = self.descend(node)
        if new.kind is ir.ForKind.THREAD_BINDING or not ir.is_const_int(new.min, 0):
            return new
        product = _size(new.extent)
        if isinstance(product, ir.Var) and product in self.pairs:
            return self._parted(new, [new.loop_var], new.body, product) or new
        return self._split(new) or new

    def _split(self, outer: ir.For) -> ir.Stmt | None:
        """Loops f0 over ceildiv(n * m, c) and f1 over c, all of whose work runs for f < n * m."""
        inner, extent = outer.body, _size(outer.extent)
        if not (isinstance(inner, ir.For) and isinstance(extent, ir.FloorDiv)):
            return None
        count, above = constant(inner.extent), _size(extent.a)
        if inner.kind is ir.ForKind.THREAD_BINDING or not ir.is_const_int(inner.min, 0):
            return None
        if count is None or constant(extent.b) != count or not isinstance(above, ir.Add):
            return None
        product = _size(above.a)
        if not (isinstance(product, ir.Var) and product in self.pairs
                and constant(above.b) == count - 1):  # fmt: skip
            return None
        base = ir.Add(ir.Mul(outer.loop_var, ir.const(count, outer.loop_var.type)), inner.loop_var)
        guard = ir.LT(base, product)
        if not _guarded(inner.body, guard):
            return None
        kind = outer.kind if outer.kind is not ir.ForKind.SERIAL else inner.kind
        return self._parted(outer.replace(kind=kind), [outer.loop_var, inner.loop_var], inner.body,
                            product, base, guard)  # fmt: skip

    def _parted(
        self,
        loop: ir.For,
        variables: list[ir.Var],
        body: ir.Stmt,
        product: ir.Var,
        base: ir.Expr | None = None,
        guard: ir.Expr | None = None,
    ) -> ir.Stmt | None:
        """Loops over both factors, when nothing but digits of `base` is used."""
        for low, high in (self.pairs[product], self.pairs[product][::-1]):
            digits = [ir.Var(f"{loop.loop_var.name}_{k}", loop.loop_var.type) for k in range(2)]
            change = _TakeDigits(loop.loop_var if base is None else base, low, digits, guard)
            made = change(body)
            if not ir.uses_var(_without_regions(made), set(variables)):
                inner = ir.For(digits[1], loop.min, low, _plain(loop.kind), made)
                return ir.For(digits[0], loop.min, high, _plain(loop.kind), inner)
        return None


def _plain(kind: ir.ForKind) -> ir.ForKind:
    return ir.ForKind.SERIAL if kind is ir.ForKind.UNROLLED else kind


def _without_regions(stmt: ir.Stmt) -> ir.Stmt:
    return _NoRegions()(stmt)


class _NoRegions(ir.Mutator):
    """Leaves out what blocks say that they read and write."""

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        return self.descend(node.replace(reads=(), writes=()))


def _guarded(stmt: ir.Stmt, guard: ir.Expr) -> bool:
    """Whether all work of a statement is under a condition."""
    match stmt:
        case ir.SeqStmt():
            return all(_guarded(s, guard) for s in stmt.seq)
        case ir.For():
            return _guarded(stmt.body, guard)
        case ir.BlockRealize():
            return any(_same(c, guard) for c in ir.conditions(stmt.predicate))
        case ir.IfThenElse():
            holds = any(_same(c, guard) for c in ir.conditions(stmt.condition))
            return holds and stmt.else_case is None
        case _:
            return False


def _same(a: ir.Expr, b: ir.Expr) -> bool:
    """Equal up to conversions of width."""
    a, b = _size(a), _size(b)
    if isinstance(a, ir.Mul) and isinstance(b, ir.Mul) and constant(a.a) is not None:
        a = ir.Mul(a.b, a.a)
    if isinstance(a, ir.IntImm) and isinstance(b, ir.IntImm):
        return a.value == b.value
    if isinstance(a, (ir.Add, ir.Mul, ir.LT)) and type(a) is type(b):
        return _same(a.a, b.a) and _same(a.b, b.b)  # type: ignore[union-attr]
    return a is b or ir.structural_equal(a, b)


class _TakeDigits(ir.Mutator):
    """`base // m` and `base % m` become variables, the guard true."""

    def __init__(self, base: ir.Expr, low: ir.Var, digits: list[ir.Var],
                 guard: ir.Expr | None) -> None:  # fmt: skip
        super().__init__()
        self.base, self.low, self.digits, self.guard = base, low, digits, guard

    def _digit(self, node: ir.FloorDiv | ir.FloorMod, digit: ir.Var) -> ir.Expr:
        if _size(node.b) is self.low and _same(node.a, self.base):
            return ir.cast_to(digit, node.dtype)
        return self.descend(node)

    def rewrite_FloorDiv(self, node: ir.FloorDiv) -> ir.Expr:
        return self._digit(node, self.digits[0])

    def rewrite_FloorMod(self, node: ir.FloorMod) -> ir.Expr:
        return self._digit(node, self.digits[1])

    def rewrite_LT(self, node: ir.LT) -> ir.Expr:
        if self.guard is not None and _same(node, self.guard):
            return ir.const(True, "bool")
        return self.descend(node)


# ------------------------------------------------------------------------------------------- lines
class _Lines(ir.Mutator):
    """Neighbouring axes, loops and iterators of two sizes become one."""

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
        made = tuple(map(self, indices))
        k = self.positions.get(buffer)
        if k is None:
            return made
        return (*made[:k], _line(made[k], made[k + 1], buffer.shape[k + 1]), *made[k + 2 :])

    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> ir.Expr:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(buffer=self(node.buffer), predicate=predicate,
                            indices=self._indices(node.buffer, node.indices))  # fmt: skip

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        predicate = None if node.predicate is None else self(node.predicate)
        return node.replace(buffer=self(node.buffer), value=self(node.value), predicate=predicate,
                            indices=self._indices(node.buffer, node.indices))  # fmt: skip

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
        """From now on two variables are digits of one."""
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
        made: Any = self.descend(plain)
        return ir.BlockRealize(tuple(kept), self(node.predicate),
                               made.replace(iter_vars=tuple(iters)))  # fmt: skip


def _alike(a: ir.IterVar, b: ir.IterVar) -> bool:
    """Whether two iterators can be digits of one."""
    return a.iter_type is b.iter_type and all(ir.is_const_int(it.dom.min, 0) for it in (a, b))


def _line(high: ir.Expr, low: ir.Expr, count: ir.Expr) -> ir.Expr:
    """`high * count + low`, undone where these are the digits of one number."""
    count = _size(count)
    a, b = _size(high), _size(low)
    if not (isinstance(a, ir.FloorDiv) and isinstance(b, ir.FloorMod)):
        raise Unknown(f"{high!r}, {low!r} are not the digits of one number")
    if _size(a.b) is count is _size(b.b) and ir.structural_equal(a.a, b.a):
        return a.a
    raise Unknown(f"{high!r}, {low!r} are not the digits of one number")
