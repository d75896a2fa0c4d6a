"""Match a block against the semantics of a tensor intrinsic (`tensorize`).

Both sides are a single store under block iterators. The match pairs iterators and buffers such that
every access of the block equals the intrinsic's access plus an offset that is invariant in the
inner iterators. The intrinsic's indices are single iterators, or computed from iterators that the
store indexes with. Additional leading dimensions of the block's buffers must be invariant. Operands
of commutative operators match in either order.
"""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.analysis.access.views import element_behind_view
from blockwright.arith import Analyzer
from blockwright.arith.text import expr_text

_SWAPPABLE = (ir.Add, ir.Mul, ir.Min, ir.Max)


class Match:
    """The pairing found so far: intrinsic iterators with block iterators, and buffers."""

    def __init__(
        self, meaning: ir.Block, block: ir.Block, analyzer: Analyzer, loops: Mapping[ir.Var, ir.Var]
    ) -> None:
        self.meaning = {it.var: it for it in meaning.iter_vars}
        self.inner = {it.var: it for it in block.iter_vars}
        self.loops = loops
        self.analyzer = analyzer
        self.iterators: dict[ir.Var, ir.Var | None] = {}
        self.regions: dict[ir.Buffer, ir.BufferRegion] = {}
        self.why, self.remedy = "the statements differ", ""
        self.guilty: tuple[ir.Node, ...] = ()
        self._progress = -1

    def _no(self, why: str, remedy: str, *guilty: ir.Node) -> bool:
        """Record the reason of the failure that paired the most: with operands swapped, the match
        may fail earlier, with a less useful reason."""
        progress = len(self.iterators) + len(self.regions)
        if progress > self._progress:
            self.why, self.remedy, self.guilty = why, remedy, guilty
            self._progress = progress
        return False

    def run(self, meaning: ir.Stmt, stmt: ir.Stmt) -> bool:
        """Whether the bodies match and every iterator of the block is paired."""
        if not isinstance(meaning, ir.BufferStore) or not isinstance(stmt, ir.BufferStore):
            return False
        if not self._access(meaning, stmt) or not self._same(meaning.value, stmt.value):
            return False
        used = {v for v in self.iterators.values() if v is not None}
        for var, it in self.inner.items():
            if var not in used and not ir.is_const_int(it.dom.extent, 1):
                loop = self._loop(var)
                return self._no(
                    f"{self._shown(var)} has no counterpart in the intrinsic",
                    f"reorder loop {loop} out of the tile",
                    *self._guilty(var),
                )
        return True

    # ------------------------------------------------------------------ expressions
    def _same(self, a: ir.Expr, b: ir.Expr) -> bool:
        if type(a) is not type(b) or a.dtype is not b.dtype:
            typed = "" if a.dtype is b.dtype else f" of {a.dtype}"
            other = "" if a.dtype is b.dtype else f" of {b.dtype}"
            return self._no(
                f"the intrinsic has {expr_text(a)}{typed} where the block has "
                f"{expr_text(b)}{other}",
                "",
                b,
            )
        if isinstance(a, ir.BufferLoad) and isinstance(b, ir.BufferLoad):
            return self._access(a, b)
        if isinstance(a, _SWAPPABLE) and isinstance(b, _SWAPPABLE):
            return self._either(a, b)
        if isinstance(a, ir.Var) and isinstance(b, ir.Var):
            return a in self.meaning and self._pair(a, b) and self._starts_alike(a, b)
        if isinstance(a, (ir.IntImm, ir.FloatImm, ir.StringImm)):
            return ir.structural_equal(a, b)
        if isinstance(a, ir.Call) and isinstance(b, ir.Call) and a.op != b.op:
            return self._no(f"the intrinsic calls {a.op}, the block {b.op}", "", b)
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
            return self._no(
                f"{b.buffer.name} holds {b.buffer.dtype}, the intrinsic's {a.buffer.name} "
                f"{a.buffer.dtype}",
                f"use an intrinsic for {b.buffer.dtype}, or cast "
                f"{b.buffer.name} into a buffer of {a.buffer.dtype} in a block before it",
                b,
            )
        extra = len(b.indices) - len(a.indices)
        if extra < 0:
            return self._no(
                f"{b.buffer.name} has {len(b.indices)} dimensions, the intrinsic's "
                f"{a.buffer.name} {len(a.indices)}",
                "transform_layout or reindex it to as many dimensions",
                b,
            )
        ranges: list[ir.Range] = []
        for index in b.indices[:extra]:
            if ir.uses_var(index, set(self.inner)):
                return self._no(
                    f"iterators of the tile index dimension {len(ranges)} of {b.buffer.name}, but "
                    f"the intrinsic accesses only the last {len(a.indices)} dimensions",
                    f"reorder that loop out of the tile, or transform_layout {b.buffer.name} so "
                    "that the tile lies in its last dimensions",
                    b,
                )
            ranges.append(ir.point(index))
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
        return same or self._no(
            f"{a.buffer.name} of the intrinsic would match two regions: {_place(known)} and "
            f"{_place(region)}",
            "",
            b,
        )

    def _base(self, mine: ir.Expr, theirs: ir.Expr) -> ir.Expr | None:
        """The block's index at the start of its inner iterator, aligned with the intrinsic's."""
        moving = [v for v in dict.fromkeys(ir.free_vars(theirs)) if v in self.inner]
        if not isinstance(mine, ir.Var) or mine not in self.meaning:
            if (mapped := self._of_pairs(mine, theirs.dtype)) is not None:
                return self._difference(theirs, mapped)
            if moving or not ir.is_const_int(mine, 0):
                self._no("the intrinsic must index with its iterators or 0", "", theirs)
                return None
            return theirs
        if not moving:
            if not self._pair(mine, None):
                return None
            return theirs
        start = self.inner[moving[0]].dom.min - self.meaning[mine].dom.min
        base = self.analyzer.simplify(theirs - moving[0] + ir.cast_to(start, theirs.dtype))
        if len(moving) > 1 or ir.uses_var(base, moving[0]):
            self._no(
                f"index {expr_text(theirs)} does not have unit stride in a single iterator: it "
                f"uses {', '.join(map(self._shown, moving))}",
                "reindex the operand, so that each index is one iterator",
                theirs,
            )
            return None
        return base if self._pair(mine, moving[0]) else None

    def _of_pairs(self, mine: ir.Expr, dtype: ir.DType) -> ir.Expr | None:
        """An index of several iterators in terms of the block's; None unless all are paired."""
        used = ir.free_vars(mine)
        values: dict[ir.Var, ir.Expr] = {}
        for var in used:
            theirs = self.iterators.get(var)
            if theirs is None:
                return None
            start = self.inner[theirs].dom.min - ir.cast_to(self.meaning[var].dom.min, theirs.dtype)
            values[var] = ir.cast_to(theirs - start, var.dtype)
        return ir.cast_to(ir.substitute(mine, values), dtype) if used else None

    def _difference(self, theirs: ir.Expr, mapped: ir.Expr) -> ir.Expr | None:
        base = self.analyzer.simplify(theirs - mapped)
        if not ir.uses_var(base, set(self.inner)):
            return base
        self._no(
            f"index {expr_text(theirs)} does not follow the iterators as the intrinsic's does, "
            f"which is {expr_text(mapped)} from its start",
            "reindex or transform_layout the operand",
            theirs,
        )
        return None

    def _pair(self, mine: ir.Var, theirs: ir.Var | None) -> bool:
        """Pair an iterator of the intrinsic with one of the block (None: a fixed index)."""
        if mine in self.iterators:
            known = self.iterators[mine]
            if known is theirs:
                return True
            both = [self._shown(v) for v in (known, theirs)]
            return self._no(
                f"{mine.name} of the intrinsic would match both {both[0]} and {both[1]}",
                "",
                *self._guilty(known),
                *self._guilty(theirs),
            )
        wanted = self.meaning[mine].dom.extent
        if theirs is None:
            if not ir.is_const_int(wanted, 1):
                return self._no(
                    f"{mine.name} of the intrinsic has extent {expr_text(wanted)}, but no loop of "
                    "the tile drives that index",
                    "choose a loop further outside, or reorder the "
                    f"loop that drives it into the tile, with extent {expr_text(wanted)}",
                )
        elif not self._alike(mine, theirs):
            return False
        self.iterators[mine] = theirs
        return True

    def _starts_alike(self, mine: ir.Var, theirs: ir.Var) -> bool:
        """Whether two iterators that occur in computed values start at the same value."""
        start, other = self.meaning[mine].dom.min, self.inner[theirs].dom.min
        if self.analyzer.prove_equal(ir.cast_to(start, other.dtype), other):
            return True
        return self._no(
            f"{self._shown(theirs)} starts at {expr_text(other)}, {mine.name} of the intrinsic at "
            f"{expr_text(start)}, and both compute with it",
            "",
            *self._guilty(theirs),
        )

    def _alike(self, mine: ir.Var, theirs: ir.Var) -> bool:
        """Whether two iterators have the same kind and extent."""
        it, other = self.meaning[mine], self.inner[theirs]
        shown, guilty = self._shown(theirs), self._guilty(theirs)
        if any(v is theirs for v in self.iterators.values()):
            return self._no(f"{shown} would match two iterators of the intrinsic", "", *guilty)
        if other.iter_type is not it.iter_type:
            kinds = [t.iter_type.name.lower() for t in (other, it)]
            return self._no(
                f"{shown} is a {kinds[0]} iterator, {mine.name} of the intrinsic a {kinds[1]} one",
                "",
                *guilty,
            )
        wanted = it.dom.extent
        if self.analyzer.prove_equal(ir.cast_to(wanted, other.dom.extent.dtype), other.dom.extent):
            return True
        size = expr_text(wanted)
        return self._no(
            f"{shown} runs over {expr_text(other.dom.extent)}, {mine.name} of the "
            f"intrinsic over {size}",
            self._resize(theirs, wanted),
            *guilty,
        )

    def _resize(self, var: ir.Var, wanted: ir.Expr) -> str:
        """Help text: how to give an iterator the extent that the intrinsic requires."""
        loop, size = self._loop(var), expr_text(wanted)
        have, want = ir.const_int(self.inner[var].dom.extent), ir.const_int(wanted)
        if want == 1:
            return f"reorder loop {loop} out of the tile"
        if have is not None and want is not None and have < want:
            return (
                f"make loop {loop} {size} long: split by {size} instead of {have}, "
                "or pad_einsum first"
            )
        return f"split({loop}, [None, {size}]) and reorder the outer part out of the tile"

    def _loop(self, var: ir.Var) -> str:
        return self.loops[var].name if var in self.loops else var.name

    def _guilty(self, var: ir.Var | None) -> tuple[ir.Node, ...]:
        loop = None if var is None else self.loops.get(var)
        return () if loop is None else (loop,)

    def _shown(self, var: ir.Var | None) -> str:
        """Text: an iterator of the block with its loop, or "a fixed place" for None."""
        if var is None:
            return "a fixed place"
        loop = self.loops.get(var)
        return var.name if loop is None else f"{var.name} (loop {loop.name})"


def seen_through(block: ir.Block) -> ir.Block:
    """The block with its views (`match_buffer`) inlined into the accesses."""
    if not block.match_buffers:
        return block
    views = {m.buffer: m.source for m in block.match_buffers}
    return block.replace(body=_SeeThrough(views)(block.body), match_buffers=())


class _SeeThrough(ir.Mutator):
    def __init__(self, views: Mapping[ir.Buffer, ir.BufferRegion]) -> None:
        super().__init__()
        self.views = views

    def _access(self, node: ir.BufferLoad | ir.BufferStore) -> ir.Node:
        new = self.descend(node)
        buffer, indices = new.buffer, new.indices
        while buffer in self.views:
            source = self.views[buffer]
            buffer, indices = source.buffer, element_behind_view(source, indices)
        return new if buffer is new.buffer else new.replace(buffer=buffer, indices=indices)

    rewrite_BufferLoad = rewrite_BufferStore = _access


def _place(region: ir.BufferRegion) -> str:
    return f"{region.buffer.name}[{', '.join(expr_text(r.min) for r in region.region)}]"
