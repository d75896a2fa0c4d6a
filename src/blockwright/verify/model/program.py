"""A tensor program as statements with instance sets, the form that the proofs work on.

`ProgramModel` walks a function once. Every store is a `Statement`, and so is the content at entry
of a parameter that the program writes. Variables bound by `let` are replaced by their values. A
store that combines an element with a value (`C[i] = C[i] + e`) is an *update*; updates of one
element may run in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.affine import affine, condition
from blockwright.verify.model import memory
from blockwright.verify.model.instance_sets import (
    EnclosingLoop,
    InstanceSet,
    Iterator,
    QuerySpace,
    StatementPosition,
    size_text,
)
from blockwright.verify.model.lanes import scalar_store
from blockwright.verify.model.positions import Tables, Taken
from blockwright.verify.model.predicated_stores import guarded
from blockwright.verify.model.privatization import Owners
from blockwright.verify.model.statement import COMBINERS, Statement, TupleUpdate, updated
from blockwright.verify.model.tuples import Combination, Joint, joint_update
from blockwright.verify.verdict import Unknown

FIRST, LAST = -1, 1 << 30


class RegionView(msgspec.Struct, frozen=True, eq=False):
    """A buffer that is a view of a region of another buffer, and the origin of the region."""

    source: ir.Buffer
    origin: tuple[ir.Expr, ...]


class ProgramModel:
    """A function as statements.

    Args:
        func: the function.
        space: shared by both programs.
        tag: prefix for the names of its instances and internal buffers.
        names: isl parameter names of its symbolic sizes and scalars.

    Attributes:
        bound: lets whose value may never be used; it is computed all the same.
        fails: the sizes for which an assertion does not hold.
    """

    def __init__(
        self, func: ir.PrimFunc, space: QuerySpace, tag: str, names: Mapping[ir.Var, str]
    ) -> None:
        self.func, self.space, self.tag = func, space, tag
        self.statements: list[Statement] = []
        self.params = {b: f"P{k}" for k, b in enumerate(func.buffers)}
        self.inner: dict[ir.Buffer, str] = {}
        self.views: dict[ir.Buffer, RegionView] = {}
        self.count = 0
        self.bound: list[Statement] = []
        self.fails = space.known.subtract(space.known)
        self.open: dict[str, str] = {}
        self.owners = Owners(func.body)
        self.tables = Tables(func)
        for buffer in func.buffers:
            self._require_plain(buffer)
        self._visit(func.body, _begin(func.body, names))
        self.written = {s.buffer for s in self.statements}
        self.sizes = dict(names)
        for buffer in func.buffers:
            if buffer in self.written:
                self._at_entry(buffer)
        self._settle_combiners()

    def fresh(self, prefix: str) -> str:
        """A unique name within this program."""
        self.count += 1
        return f"{self.tag}{prefix}{self.count}"

    # ------------------------------------------------------------------ buffers
    def _require_plain(self, buffer: ir.Buffer) -> None:
        if buffer.dtype.lanes != 1:
            raise Unknown(f"elements of {buffer.name} are vectors")

    def element_name(self, buffer: ir.Buffer) -> str:
        """The isl name of a buffer's elements; parameters have the same name in both programs."""
        result = self.params.get(buffer) or self.inner.get(buffer)
        if result is None:
            self._require_plain(buffer)
            result = self.inner[buffer] = self.fresh("B")
        return result

    def resolve(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]
    ) -> tuple[ir.Buffer, tuple[ir.Expr, ...]]:
        """Resolve an access through views to the underlying buffer."""
        while buffer in self.views:
            view = self.views[buffer]
            ahead = len(view.origin) - len(indices)
            shifted = [low + i for low, i in zip(view.origin[ahead:], indices, strict=True)]
            buffer, indices = view.source, (*view.origin[:ahead], *shifted)
        return buffer, indices

    def root(self, buffer: ir.Buffer) -> ir.Buffer:
        """The underlying buffer of a view; any other buffer itself."""
        while buffer in self.views:
            buffer = self.views[buffer].source
        return buffer

    def access(self, frame: InstanceSet, buffer: ir.Buffer, texts: Iterable[str]) -> isl.Map:
        """Instance → element, prefixed with the copy for a privatized buffer."""
        return self.element(frame, buffer, frame.relation(texts))

    def element(self, frame: InstanceSet, buffer: ir.Buffer, position: isl.Map) -> isl.Map:
        """Instance → element of a buffer, from instance → position in the buffer."""
        name = self.element_name(buffer)
        element = position.to(name)
        copies = self.owners.copies(buffer, frame.place.loops)
        if not copies:
            return element
        both = frame.time(copies).flat_range_product(element)
        return both.to(name)

    def box(self, buffer: ir.Buffer, frame: InstanceSet) -> isl.Set:
        """The index domain of a buffer, without copies."""
        extents = [size_text(n, {**self.sizes, **frame.names}) for n in buffer.shape]
        axes = [f"x{k}" for k in range(len(extents))]
        inside = " and ".join(f"0 <= {x} < {n}" for x, n in zip(axes, extents, strict=True))
        return self.space.set(f"[{', '.join(axes)}] : {inside or '0 = 0'}")

    def _at_entry(self, buffer: ir.Buffer) -> None:
        """Model the content of a written parameter at entry as a first store of every element."""
        frame = self.whole(buffer, self.fresh("E"), FIRST)
        write = frame.relation(frame.coordinates, self.element_name(buffer))
        self.statements.append(Statement(frame, buffer, write.intersect_domain(frame.domain), None))

    def whole(self, buffer: ir.Buffer, name: str, position: int) -> InstanceSet:
        """One instance per element of a parameter, before or after all other statements."""
        extents = [size_text(n, self.sizes) for n in buffer.shape]
        axes = tuple(f"x{k}" for k in range(len(extents)))
        inside = tuple(f"0 <= {x} < {n}" for x, n in zip(axes, extents, strict=True))
        loops = tuple(EnclosingLoop(x, ir.ForKind.SERIAL, "") for x in axes)
        return InstanceSet(
            self.space,
            name,
            StatementPosition(loops=loops, inner=axes, conditions=inside, path=(position,)),
        )

    def _settle_combiners(self) -> None:
        """Demote updates to plain stores where several combiners update one buffer.

        This covers buffers updated by several operations or overwritten from their own content. An
        update that reaches each element once becomes a load, an operation and a store.
        """
        for buffer in self.written:
            updates = [s for s in self.statements if s.buffer is buffer and s.combiner]
            if len({s.combiner for s in updates}) > 1:
                for statement in updates:
                    if statement.plain is not None and statement.write.is_injective():
                        statement.combiner, statement.value = "", statement.plain[0]

    # ------------------------------------------------------------------ statements
    def _visit(self, stmt: ir.Stmt, place: StatementPosition) -> None:
        match stmt:
            case ir.SeqStmt():
                for k, child in enumerate(stmt.seq):
                    self._visit(child, place.at(k))
            case ir.For():
                self._loop(stmt, place)
            case ir.BlockRealize():
                self._block(stmt, place)
            case ir.BufferStore():
                self._store(stmt, place)
            case ir.IfThenElse():
                text = condition(stmt.condition, place.names)
                if text is None:
                    self._visit(guarded(stmt, self.root), place)
                    return
                self._visit(stmt.then_case, place.at(0).given(text))
                if stmt.else_case is not None:
                    self._visit(stmt.else_case, place.at(1).given(f"(not {text})"))
            case ir.LetStmt():
                self._let(stmt, place)
            case ir.AttrStmt() if stmt.key.startswith("pragma"):
                self._visit(stmt.body, place)
            case ir.Evaluate() if isinstance(stmt.value, ir.Call) and ir.is_atomic(stmt.value):
                self._atomic(stmt.value, place)
            case ir.Evaluate() if isinstance(stmt.value, ir.IntImm):
                pass  # no effect
            case ir.AssertStmt():
                self._assert(stmt, place)
            case _:
                _outside(stmt)

    def _loop(self, stmt: ir.For, place: StatementPosition) -> None:
        low, extent = affine(stmt.min, place.names), affine(stmt.extent, place.names)
        if low is None or extent is None:
            raise Unknown(
                f"the extent {stmt.extent!r} of loop {stmt.loop_var.name} is not linear "
                "in sizes, loops and iterators"
            )
        tag = stmt.thread.thread_tag if stmt.thread is not None else ""
        if tag in self.open and not tag.startswith("vthread"):  # the enclosing loop's thread
            outer = self.open[tag]
            if outer not in place.inner:
                raise Unknown(f"a loop on {tag} inside of a block inside of another such loop")
            names = {**place.names, stmt.loop_var: outer}
            inside = place.given(f"({low} <= {outer} < {low} + {extent})")
            self._visit(stmt.body, msgspec.structs.replace(inside, names=names))
            return
        name = self.fresh("l")
        loop = EnclosingLoop(name, stmt.kind, tag, stmt)
        if tag:
            self.open[tag] = name
        self._visit(
            stmt.body,
            msgspec.structs.replace(
                place,
                loops=(*place.loops, loop),
                inner=(*place.inner, name),
                path=(*place.path, name),
                names={**place.names, stmt.loop_var: name},
                conditions=(*place.conditions, f"({low} <= {name} < {low} + {extent})"),
            ),
        )
        if tag:
            del self.open[tag]

    def _block(self, stmt: ir.BlockRealize, place: StatementPosition) -> None:
        block = stmt.block
        names = {v: t for v, t in place.names.items() if t not in place.inner}
        result: list[Iterator] = []
        for it, value in zip(block.iter_vars, stmt.iter_values, strict=True):
            binding = affine(value, place.names)
            low, extent = affine(it.dom.min, names), affine(it.dom.extent, names)
            if binding is None or low is None or extent is None:
                raise Unknown(
                    f"the binding {value!r} of {it.var.name} in block {block.name} is not "
                    "quasi-affine"
                )
            name = self.fresh("b")
            names[it.var] = name
            result.append(Iterator(name, low, extent, binding, it.iter_type is ir.IterType.REDUCE))
        runs = condition(stmt.predicate, {**place.names, **names})
        if runs is None:
            raise Unknown(f"the predicate of block {block.name} is not a condition on indices")
        conditions = (
            place.conditions if ir.is_const_int(stmt.predicate, 1) else (*place.conditions, runs)
        )
        inside = msgspec.structs.replace(
            place, iters=(*place.iters, *result), inner=(), conditions=conditions, names=names
        )
        for view in block.match_buffers:
            self._view(view, inside)
        if block.init is not None:
            begins = [f"({it.name} = {it.low})" for it in result if it.reduces]
            first = msgspec.structs.replace(inside.at(0), conditions=(*conditions, *begins))
            self._parts(block.init, first, block, init=True)
        self._parts(block.body, inside.at(1), block, init=False)

    def _parts(self, stmt: ir.Stmt, place: StatementPosition, block: ir.Block, init: bool) -> None:
        start = len(self.statements)
        self._visit(stmt, place)
        for statement in self.statements[start:]:
            if statement.block is None:
                statement.block, statement.init = block, init

    def _view(self, view: ir.MatchBufferRegion, place: StatementPosition) -> None:
        source = view.source
        self._require_plain(view.buffer)
        if view.buffer.dtype is not source.buffer.dtype:
            raise Unknown(f"the view {view.buffer.name} has another element type than its buffer")
        extra = len(source.region) - view.buffer.ndim
        if extra < 0 or not all(ir.is_const_int(r.extent, 1) for r in source.region[:extra]):
            raise Unknown(f"the view {view.buffer.name} has another shape than its region")
        _require_layout(view.buffer, source, extra)
        start = tuple(r.min for r in source.region)
        self._require_offset(view.buffer, source.buffer, start, place)
        self.views[view.buffer] = RegionView(source.buffer, start)

    def _require_offset(
        self,
        view: ir.Buffer,
        source: ir.Buffer,
        start: tuple[ir.Expr, ...],
        place: StatementPosition,
    ) -> None:
        """Check the offset of a view's first element in its source; a variable binds to it."""
        stated: list[str] = []
        if view.offset_factor > 1:
            stated.append(f"({{}}) mod {view.offset_factor} = 0")
        if view.offset is not None and not isinstance(view.offset, ir.Var):
            known = ir.const_int(view.offset)
            if known is None:
                raise Unknown(f"the view {view.name} states its offset as {view.offset!r}")
            stated.append(f"({{}}) = {known}")
        if not stated:
            return
        memory, _ = self.resolve(source, start)
        frame = InstanceSet(self.space, self.fresh("V"), place)
        offset: ir.Expr = ir.const(0, "int64")
        for at, step in zip(start, _strides(memory)[-len(start) :], strict=True):
            offset = offset + ir.cast_to(at, "int64") * ir.cast_to(step, "int64")
        text = frame.index(offset)
        if text is None or not frame.domain.is_subset(
            self.space.set(f"{frame.tuple} : {' and '.join(stated)}".format(*[text] * len(stated)))
        ):
            raise Unknown(f"the view {view.name} states an offset that is not that of its region")

    def _let(self, stmt: ir.LetStmt, place: StatementPosition) -> None:
        text = affine(stmt.value, place.names)
        if text is not None:
            names = {**place.names, stmt.var: text}
            self._visit(stmt.body, msgspec.structs.replace(place, names=names))
            return
        value = ir.substitute(stmt.value, dict(place.values))
        inside = msgspec.structs.replace(place, values={**place.values, stmt.var: value})
        if not memory.always_uses(stmt.body, stmt.var) and memory.may_fail(value) and self.params:
            frame = InstanceSet(self.space, self.fresh("V"), place)
            nowhere = frame.relation(()).intersect_domain(frame.domain)
            self.bound.append(Statement(frame, self.func.buffers[0], nowhere, value))
        if isinstance(stmt.body, ir.LetStmt):
            self._visit(stmt.body, inside)
        else:
            self._after_lets(stmt.body, inside)

    def _after_lets(self, body: ir.Stmt, place: StatementPosition) -> None:
        """Visit statements that use values read before the statements ran."""
        stores = body.seq if isinstance(body, ir.SeqStmt) else (body,)
        plain = [s for s in stores if isinstance(s, ir.BufferStore)]
        bound = memory.read(place.values.values(), self.root)
        if not (bound & memory.written(stores, self.root)):
            self._visit(body, place)
            return
        if len(plain) == len(stores) and not self._meet(plain, place):
            self._visit(body, place)
            return
        values = [ir.substitute(s.value, dict(place.values)) for s in plain]
        taken = [self.tables.take(v) for v in values]
        values = [value for value, _ in taken]
        joint = joint_update(plain, values) if len(plain) == len(stores) else None
        if joint is None:
            raise Unknown("a value read from a buffer is used after the buffer is overwritten")
        reads = tuple(read for _, reads in taken for read in reads)
        self._joint(*joint, msgspec.structs.replace(place, values={}), reads)

    def _meet(self, stores: list[ir.BufferStore], place: StatementPosition) -> bool:
        """Whether a store reads, also by a bound value, what an earlier one has written."""
        written: set[ir.Buffer] = set()
        for store in stores:
            value = ir.substitute(store.value, dict(place.values))
            if memory.read((value,), self.root) & written:
                return True
            written |= memory.written((store,), self.root)
        return False

    def _joint(
        self,
        step: Joint,
        combination: Combination,
        place: StatementPosition,
        taken: tuple[Taken, ...],
    ) -> None:
        """Add one update per component; each combines the whole tuple of terms."""
        group = TupleUpdate(step, combination, [])
        for k, buffer in enumerate(step.buffers):
            result = self._written(buffer, step.indices[k], place.at(k), step.terms[k], step.key)
            result.group, result.taken = group, taken
            group.statements.append(result)

    def _assert(self, stmt: ir.AssertStmt, place: StatementPosition) -> None:
        text = condition(stmt.condition, place.names)
        if text is None or place.loops or place.iters:
            raise Unknown(f"the assertion of {stmt.condition!r} is not a condition on sizes")
        stops = " and ".join([*place.conditions, f"(not {text})"])
        self.fails = self.fails.union(self.space.known.intersect(self.space.set(f": {stops}")))

    # ------------------------------------------------------------------ stores
    def _store(self, stmt: ir.BufferStore, place: StatementPosition) -> None:
        scalar, lanes = scalar_store(stmt)
        if lanes is not None:
            name = self.fresh("l")
            loop = EnclosingLoop(name, ir.ForKind.VECTORIZED, "")
            place = msgspec.structs.replace(
                place,
                loops=(*place.loops, loop),
                inner=(*place.inner, name),
                path=(*place.path, name),
                names={**place.names, lanes.var: name},
                conditions=(*place.conditions, f"(0 <= {name} < {lanes.count})"),
            )
        if scalar.predicate is not None:
            text = condition(scalar.predicate, place.names)
            if text is None:
                raise Unknown("the mask of a store is not a condition on indices")
            place = place.given(text)
        values = dict(place.values)
        value = ir.substitute(scalar.value, values) if values else scalar.value
        if place.names and values:
            place = msgspec.structs.replace(place, values={})
        value, taken = self.tables.take(value)
        combiner, rest = updated(scalar, value)
        result = self._written(scalar.buffer, scalar.indices, place, rest, combiner)
        result.plain, result.taken = (value,), taken

    def _atomic(self, call: ir.Call, place: StatementPosition) -> None:
        at = ir.atomic_place(call)
        if at is None:
            raise Unknown("an atomic update of an unknown place")
        value = ir.atomic_value(call, at)
        combiner = COMBINERS.get(type(value), "")
        if not combiner:
            raise Unknown(f"the atomic update {call.op} on bits")
        term = ir.substitute(call.args[1], dict(place.values))
        place = msgspec.structs.replace(place, values={})
        result = self._written(at.buffer, at.indices, place, term, combiner)
        result.atomic = True

    def _written(
        self,
        buffer: ir.Buffer,
        indices: tuple[ir.Expr, ...],
        place: StatementPosition,
        value: ir.Expr,
        combiner: str,
    ) -> Statement:
        buffer, indices = self.resolve(buffer, indices)
        frame = InstanceSet(self.space, self.fresh("S"), place)
        texts = [frame.index(i) for i in indices]
        if any(t is None for t in texts):
            raise Unknown(f"{buffer.name} is written at a position that is not quasi-affine")
        write = self.access(frame, buffer, [t for t in texts if t is not None])
        result = Statement(frame, buffer, write.intersect_domain(frame.domain), value, combiner)
        result.indices = indices
        self.statements.append(result)
        return result


def _begin(body: ir.Stmt, names: Mapping[ir.Var, str]) -> StatementPosition:
    """The position of a whole program. Every path begins with a position in program order."""
    place = StatementPosition(names=dict(names))
    return place if isinstance(body, (ir.BlockRealize, ir.SeqStmt)) else place.at(0)


def _outside(stmt: ir.Stmt) -> NoReturn:
    kind = type(stmt).__name__
    if isinstance(stmt, ir.Evaluate) and isinstance(stmt.value, ir.Call):
        kind = f"call of {stmt.value.op}"
    raise Unknown(f"an unsupported statement: {kind}")


def _require_layout(view: ir.Buffer, source: ir.BufferRegion, extra: int) -> None:
    """Check a view's declared shape and strides; a variable binds to the actual value."""
    sizes = [r.extent for r in source.region[extra:]]
    strides = _strides(source.buffer)[extra:]
    stated = [*zip(view.shape, sizes, strict=True), *zip(view.strides, strides, strict=False)]
    for wanted, result in stated:
        numbers = ir.const_int(wanted), ir.const_int(result)
        same = None not in numbers and numbers[0] == numbers[1]
        if not (isinstance(wanted, ir.Var) or same or ir.structural_equal(wanted, result)):
            raise Unknown(
                f"the view {view.name} declares a shape or strides that do not provably "
                "match its region"
            )


def _strides(buffer: ir.Buffer) -> list[ir.Expr]:
    """The stride of each dimension, in elements."""
    if buffer.strides:
        return list(buffer.strides)
    result: list[ir.Expr] = []
    step: ir.Expr = ir.const(1, "int64")
    for size in reversed(buffer.shape):
        result.insert(0, step)
        step = step * ir.cast_to(size, "int64")
    return result
