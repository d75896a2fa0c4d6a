"""Matching a block against the meaning of a tensor intrinsic.

Both sides are one store under block iterators. The match pairs iterators and buffers so that every
access of the block is the intrinsic's access shifted by something the inner iterators do not move;
further leading dimensions of the block's buffers stay fixed. Operands of sums and products may
stand in either order.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer

_SWAPPABLE = (ir.Add, ir.Mul, ir.Min, ir.Max)


class Match:
    """Pairs found so far: iterators of the meaning with iterators of the block, and buffers."""

    def __init__(self, meaning: ir.Block, block: ir.Block, analyzer: Analyzer) -> None:
        self.meaning = {it.var: it for it in meaning.iter_vars}
        self.inner = {it.var: it for it in block.iter_vars}
        self.analyzer = analyzer
        self.iterators: dict[ir.Var, ir.Var | None] = {}
        self.regions: dict[ir.Buffer, ir.BufferRegion] = {}
        self.why = "the statements differ"

    def run(self, meaning: ir.Stmt, stmt: ir.Stmt) -> bool:
        """Whether the bodies match and every iterator of the block has its partner."""
        if not isinstance(meaning, ir.BufferStore) or not isinstance(stmt, ir.BufferStore):
            return False
        if not self._access(meaning, stmt) or not self._same(meaning.value, stmt.value):
            return False
        used = {v for v in self.iterators.values() if v is not None}
        for var, it in self.inner.items():
            if var not in used and not ir.is_const_int(it.dom.extent, 1):
                self.why = f"iterator {var.name} has no partner in the meaning"
                return False
        return True

    # ------------------------------------------------------------------ expressions
    def _same(self, a: ir.Expr, b: ir.Expr) -> bool:
        if type(a) is not type(b) or a.dtype is not b.dtype:
            self.why = f"the meaning has {type(a).__name__} ({a.dtype}) where the block has " \
                       f"{type(b).__name__} ({b.dtype})"  # fmt: skip
            return False
        if isinstance(a, ir.BufferLoad) and isinstance(b, ir.BufferLoad):
            return self._access(a, b)
        if isinstance(a, _SWAPPABLE) and isinstance(b, _SWAPPABLE):
            return self._either(a, b)
        if isinstance(a, ir.Var) and isinstance(b, ir.Var):
            return a in self.meaning and self._pair(a, b)
        if isinstance(a, (ir.IntImm, ir.FloatImm, ir.StringImm)):
            return ir.structural_equal(a, b)
        if isinstance(a, ir.Call) and isinstance(b, ir.Call) and a.op != b.op:
            self.why = f"the meaning calls {a.op}, the block {b.op}"
            return False
        left = [c for c in a.children() if isinstance(c, ir.Expr)]
        right = [c for c in b.children() if isinstance(c, ir.Expr)]
        if len(left) != len(right):
            return False
        return all(self._same(x, y) for x, y in zip(left, right, strict=True))

    def _either(self, a: ir.BinaryOp, b: ir.BinaryOp) -> bool:
        for x, y in ((b.a, b.b), (b.b, b.a)):
            before = dict(self.iterators), dict(self.regions)
            if self._same(a.a, x) and self._same(a.b, y):
                return True
            self.iterators, self.regions = before
        return False

    # ------------------------------------------------------------------ accesses
    def _access(self, a: ir.BufferLoad | ir.BufferStore, b: ir.BufferLoad | ir.BufferStore) -> bool:
        if a.buffer.dtype is not b.buffer.dtype or b.predicate is not None:
            self.why = f"{b.buffer.name} holds {b.buffer.dtype}, the meaning wants {a.buffer.dtype}"
            return False
        extra = len(b.indices) - len(a.indices)
        if extra < 0:
            self.why = f"{b.buffer.name} has fewer dimensions than {a.buffer.name} of the meaning"
            return False
        ranges: list[ir.Range] = []
        for index in b.indices[:extra]:
            if ir.uses_var(index, set(self.inner)):
                self.why = f"inner iterators move a leading dimension of {b.buffer.name}"
                return False
            ranges.append(ir.Range(index, ir.const(1, index.dtype)))
        for mine, theirs, size in zip(a.indices, b.indices[extra:], a.buffer.shape, strict=True):
            base = self._base(mine, theirs)
            if base is None:
                return False
            ranges.append(ir.Range(base, ir.cast_to(size, base.dtype)))
        region = ir.BufferRegion(b.buffer, tuple(ranges))
        known = self.regions.setdefault(a.buffer, region)
        same = known.buffer is b.buffer and all(
            x.min is y.min or self.analyzer.prove_equal(x.min, y.min)
            for x, y in zip(known.region, region.region, strict=True)
        )
        if not same:
            self.why = f"{a.buffer.name} of the meaning would stand for two places"
        return same

    def _base(self, mine: ir.Expr, theirs: ir.Expr) -> ir.Expr | None:
        """What remains of the block's index when its inner iterator is 0."""
        moving = [v for v in dict.fromkeys(ir.free_vars(theirs)) if v in self.inner]
        if not isinstance(mine, ir.Var) or mine not in self.meaning:
            same = not moving and ir.is_const_int(mine, 0)
            self.why = "the meaning must index with its iterators or 0"
            return theirs if same else None
        if not moving:
            if not self._pair(mine, None):
                return None
            return theirs
        base = self.analyzer.simplify(theirs - moving[0])
        if len(moving) > 1 or ir.uses_var(base, moving[0]):
            self.why = f"an index moves with {', '.join(v.name for v in moving)}, not by one"
            return None
        return base if self._pair(mine, moving[0]) else None

    def _pair(self, mine: ir.Var, theirs: ir.Var | None) -> bool:
        """Let an iterator of the meaning stand for one of the block (None: a fixed place)."""
        if mine in self.iterators:
            if self.iterators[mine] is theirs:
                return True
            self.why = f"iterator {mine.name} of the meaning would stand for two iterators"
            return False
        it = self.meaning[mine]
        if theirs is None:
            fits = ir.is_const_int(it.dom.extent, 1)
        else:
            other = self.inner[theirs]
            taken = any(v is theirs for v in self.iterators.values())
            fits = not taken and other.iter_type is it.iter_type and self.analyzer.prove_equal(
                ir.cast_to(it.dom.extent, other.dom.extent.dtype), other.dom.extent)  # fmt: skip
        if not fits:
            what = "a fixed place" if theirs is None else f"{theirs.name}"
            self.why = f"iterator {mine.name} of the meaning does not fit {what} in kind and extent"
            return False
        self.iterators[mine] = theirs
        return True
