"""Remove aliases: replace accesses through views by accesses of the underlying buffer.

A declared view (`T.decl_buffer(..., data=A.data)`) is removed: its accesses become accesses of the
underlying buffer, at the digits of the linear position. A view of a region (`T.match_buffer` in a
block) is kept unless the block also uses the underlying buffer or another view of it. Views that
cannot be rewritten are outside of the decidable class: two names are never assumed to be distinct
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.ir.annotations import DIM_ALIGN
from blockwright.verify.verdict import Unknown

At = Callable[[Sequence[ir.Expr]], tuple[ir.Expr, ...]]


def without_views(func: ir.PrimFunc) -> ir.PrimFunc:
    """Rewrite a function to have one name for each memory.

    Raises: Unknown if a view has another element type or an unsupported layout.
    """
    names = any(isinstance(n, (ir.DeclBuffer, ir.MatchBufferRegion)) for n in ir.walk(func.body))
    return func.replace(body=_OneName(func)(func.body)) if names else func


class _OneName(ir.Mutator):
    def __init__(self, func: ir.PrimFunc) -> None:
        super().__init__()
        self.places: dict[ir.Buffer, tuple[ir.Buffer, At]] = {}
        self.pointers: dict[ir.Var, ir.Expr] = {}
        self.padded = {
            r.buffer for b in ir.blocks(func.body) if DIM_ALIGN in b.annotations for r in b.writes
        }

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        if node in self.places:
            raise Unknown(f"the view {node.name} is used as a whole")
        return node

    # ------------------------------------------------------------------ definitions
    def rewrite_LetStmt(self, node: ir.LetStmt) -> Any:
        if not node.var.type.is_handle:
            return self.descend(node)
        value = self(node.value)
        if not isinstance(value, ir.Call) or value.op != "address_of":
            raise Unknown(f"the pointer {node.var.name} points to unknown memory")
        if any(ir.collect(i, ir.BufferLoad) for i in value.args[0].children()):
            raise Unknown(f"the target of the pointer {node.var.name} is read from memory")
        self.pointers[node.var] = value
        return self(node.body)

    def rewrite_Var(self, node: ir.Var) -> ir.Expr:
        return self.pointers.get(node, node)

    def rewrite_DeclBuffer(self, node: ir.DeclBuffer) -> Any:
        source = self(node.source)
        first = source.args[0] if isinstance(source, ir.Call) and source.args else None
        if not isinstance(first, ir.BufferLoad) or getattr(source, "op", "") != "address_of":
            raise Unknown(f"the view {node.buffer.name} is on unknown memory")
        for part in (*first.indices, node.buffer.offset):
            if part is not None and ir.collect(part, ir.BufferLoad):
                raise Unknown(f"the address of the view {node.buffer.name} is read from memory")
        self._require_plain(node.buffer, first.buffer)
        self.places[node.buffer] = first.buffer, _declared(node.buffer, first)
        return self(node.body)

    def _require_plain(self, view: ir.Buffer, root: ir.Buffer) -> None:
        if view.dtype is not root.dtype:
            raise Unknown(f"the view {view.name} of {root.name} has another element type")
        plain = root.scope in ("global", "local") or root.scope.startswith("shared")
        separate = root.axis_separators or view.axis_separators
        if not plain or separate or {view, root} & self.padded:
            raise Unknown(f"the view {view.name} is on memory with an unsupported layout")

    def rewrite_Block(self, node: ir.Block) -> Any:
        kept: list[ir.MatchBufferRegion] = []
        uses = _names_in(node)
        for match in map(self, node.match_buffers):
            source = match.source.buffer
            if uses[source] > 1:
                self._require_plain(match.buffer, source)
                self.places[match.buffer] = source, _matched(match)
            else:
                kept.append(match)
        init = None if node.init is None else self(node.init)
        return node.replace(
            iter_vars=tuple(map(self, node.iter_vars)),
            reads=tuple(map(self, node.reads)),
            writes=tuple(map(self, node.writes)),
            body=self(node.body),
            init=init,
            match_buffers=tuple(kept),
        )

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        return ir.seq(self.descend(node).seq)

    # ------------------------------------------------------------------ uses
    def rewrite_BufferLoad(self, node: ir.BufferLoad) -> Any:
        return self._access(node)

    def rewrite_BufferStore(self, node: ir.BufferStore) -> Any:
        return self._access(node.replace(value=self(node.value)))

    def _access(self, node: Any) -> Any:
        indices: tuple[ir.Expr, ...] = tuple(self(i) for i in node.indices)
        predicate = None if node.predicate is None else self(node.predicate)
        place = self.places.get(node.buffer)
        if place is None:
            return node.replace(indices=indices, predicate=predicate)
        buffer, at = place
        return node.replace(buffer=buffer, indices=at(indices), predicate=predicate)

    def rewrite_BufferRegion(self, node: ir.BufferRegion) -> Any:
        """Rewrite the region of a view: exact for a single element, else the full buffer."""
        place = self.places.get(node.buffer)
        if place is None:
            return self.descend(node)
        buffer, at = place
        ranges = [self(r) for r in node.region]
        try:
            low = at([r.min for r in ranges])
            single = all(ir.is_const_int(r.extent, 1) for r in ranges)
        except Unknown:
            single, low = False, ()
        if single:
            return ir.BufferRegion(buffer, tuple(map(ir.point, low)))
        return ir.full_region(buffer)

    def rewrite_MatchBufferRegion(self, node: ir.MatchBufferRegion) -> Any:
        if node.source.buffer in self.places:
            raise Unknown(f"the view {node.buffer.name} shows a region of another view")
        return self.descend(node)


def _names_in(block: ir.Block) -> Counter[ir.Buffer]:
    """The number of names by which a block uses each buffer that it has views of."""
    views = {m.buffer: m.source.buffer for m in block.match_buffers}
    shown = set(views.values())
    below: set[ir.Buffer] = set()
    for part in (block.init, block.body):
        for node in () if part is None else ir.walk(part):
            if isinstance(node, ir.Buffer) and (node in views or node in shown):
                below.add(node)
    return Counter(views.get(b, b) for b in below)


# ------------------------------------------------------------------------------ where elements lie
def _declared(view: ir.Buffer, first: ir.BufferLoad) -> At:
    root = first.buffer
    origin = all(ir.is_const_int(i, 0) for i in first.indices)
    begins = view.offset is None or ir.is_const_int(view.offset, 0)
    same = _alike(view.shape, root.shape) and _alike(_steps(view), _steps(root))
    if origin and begins and same:
        return tuple
    if root.strides and not _alike(root.strides, _compact(root)):
        raise Unknown(f"the view {view.name} is on {root.name}, which is not contiguous")
    start = ir.const(0, "int64") if view.offset is None else view.offset
    start = _moved(start, first.indices, _compact(root))

    def at(indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        if any(i.dtype.lanes > 1 for i in indices):
            raise Unknown(f"vectors of the view {view.name}")
        flat = _moved(start, indices, _steps(view))
        digits: list[ir.Expr] = []
        for k, (size, step) in enumerate(zip(root.shape, _compact(root), strict=True)):
            digit = ir.floordiv(*ir.match_types(flat, step))
            digits.append(ir.floormod(*ir.match_types(digit, size)) if k else digit)
        return tuple(digits)

    return at


def _matched(match: ir.MatchBufferRegion) -> At:
    region = match.source.region
    ahead = len(region) - match.buffer.ndim
    steps = _steps(match.source.buffer)[max(ahead, 0) :]
    plain = all(isinstance(s, ir.Var) for s in match.buffer.strides) or (
        ahead >= 0 and _alike(match.buffer.strides, steps)
    )
    if ahead < 0 or not plain:
        raise Unknown(f"the view {match.buffer.name} has another shape than its region")

    def at(indices: Sequence[ir.Expr]) -> tuple[ir.Expr, ...]:
        if any(i.dtype.lanes > 1 for i in indices):
            raise Unknown(f"vectors of the view {match.buffer.name}")
        shown = (
            ir.add(*ir.match_types(r.min, i)) for r, i in zip(region[ahead:], indices, strict=True)
        )
        return (*(r.min for r in region[:ahead]), *shown)

    return at


def _moved(start: ir.Expr, indices: Sequence[ir.Expr], steps: Sequence[ir.Expr]) -> ir.Expr:
    for index, step in zip(indices, steps, strict=True):
        start = ir.add(*ir.match_types(start, ir.mul(*ir.match_types(index, step))))
    return start


def _steps(buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    return buffer.strides or _compact(buffer)


def _compact(buffer: ir.Buffer) -> tuple[ir.Expr, ...]:
    result: list[ir.Expr] = []
    step: ir.Expr = ir.const(1, "int64")
    for size in reversed(buffer.shape):
        result.insert(0, step)
        step = ir.mul(*ir.match_types(step, size))
    return tuple(result)


def _alike(mine: Sequence[ir.Expr], other: Sequence[ir.Expr]) -> bool:
    def one(a: ir.Expr, b: ir.Expr) -> bool:
        numbers = ir.const_int(a), ir.const_int(b)
        return numbers[0] == numbers[1] if None not in numbers else ir.structural_equal(a, b)

    return len(mine) == len(other) and all(map(one, mine, other))
