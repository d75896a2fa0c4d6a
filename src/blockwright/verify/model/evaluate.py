"""Symbolic evaluation: the value of every read and store, as terms over the program's inputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import reduce

import msgspec

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.affine import constant, is_index
from blockwright.verify.budget import begin_step
from blockwright.verify.model.gathers import Table, by_instance
from blockwright.verify.model.instance_sets import Extended, InstanceSet, min_sizes, size_text
from blockwright.verify.model.operators import (
    FALSE,
    INTEGER,
    TRUE,
    apply,
    kept_in,
    parted,
    restricted,
    sum_of,
)
from blockwright.verify.model.program import ProgramModel
from blockwright.verify.model.reaching_stores import Flow, Seen
from blockwright.verify.model.statement import COMBINERS, Statement
from blockwright.verify.model.terms import (
    Alternative,
    Leaf,
    Term,
    Value,
    pulled,
    terms_of,
)
from blockwright.verify.model.tuples import require_laws
from blockwright.verify.verdict import Mismatch, Unknown


class Agreed(msgspec.Struct, frozen=True, eq=False):
    """The final content of a buffer that both programs agree on, used as an input of later reads.

    Attributes:
        name: isl name of its elements, the same in both programs.
        written: the elements that have been written.
    """

    name: str
    written: isl.Set


class Values:
    """The values of one program.

    Attributes:
        agreed: buffers whose content is known to equal that in the other program (`lemmas`).
    """

    def __init__(self, program: ProgramModel, ahead: bool = False) -> None:
        self.program = program
        self.flow = Flow(program, ahead)
        self._stored: dict[Statement, Value] = {}
        self._open: set[Statement] = set()
        self._scalars = {var: k for k, var in enumerate(program.func.params)}
        self._undefined = itertools.count()
        self._tuples: dict[tuple[str, ...], Leaf] = {}
        self.agreed: dict[ir.Buffer, Agreed] = {}
        self._writers: dict[ir.Buffer, list[Statement]] = {}
        for statement in program.statements:
            self._writers.setdefault(statement.buffer, []).append(statement)

    def stored(self, statement: Statement) -> Value:
        """The value that a statement stores or combines, over its instances."""
        result = self._stored.get(statement)
        if result is None:
            if statement in self._open:
                raise Unknown(f"values of {statement.buffer.name} have a cyclic dependence")
            self._open.add(statement)
            frame = statement.frame
            try:
                if statement.value is None:
                    name = self.program.element_name(statement.buffer)
                    result = [Alternative(frame.domain, ("in", name), (Leaf(statement.write),))]
                else:
                    result = self._brought(statement, frame)
            finally:
                self._open.discard(statement)
            self._stored[statement] = result
        return result

    def _brought(self, statement: Statement, frame: InstanceSet) -> Value:
        """The stored value, or the value that an update combines; a tuple for a tuple update."""
        assert statement.value is not None
        begin_step(f"the value stored to {statement.buffer.name}")
        if statement.group is None:
            value = self.value(statement.value, frame, frame.domain)
            return kept_in(value, statement.value.dtype)
        step = statement.group.step
        parts = [kept_in(self.value(t, frame, frame.domain), t.dtype) for t in step.terms]
        return [_whole(a, step.key) for a in apply(("tuple",), parts, frame.domain)]

    # ------------------------------------------------------------------ reads
    def require_begun(self, update: Statement) -> None:
        """Check that the elements an update accumulates into are initialized."""
        if update.buffer not in self.program.params and update.buffer not in self.agreed:
            plain = [w for w in self._writers[update.buffer] if not w.combiner]
            self._require_written(update.buffer, update.frame, self.flow.unbegun(update, plain))

    def read(
        self, frame: InstanceSet, buffer: ir.Buffer, position: isl.Map, where: isl.Set
    ) -> Value:
        """The value of a read, given the position that each instance reads."""
        begin_step(f"reads of {buffer.name}")
        element = self.program.element(frame, buffer, position)
        agreed = self.agreed.get(buffer)
        if agreed is not None:
            missing = element.intersect_domain(where).subtract_range(agreed.written)
            self._require_written(buffer, frame, missing.domain())
            result = element.to(agreed.name)
            return [Alternative(where, ("in", agreed.name), (Leaf(result),))]
        writers = self._writers.get(buffer, [])
        if not writers and buffer in self.program.params:
            name = self.program.element_name(buffer)
            return [Alternative(where, ("in", name), (Leaf(element),))]
        seen = self.flow.seen(frame, element.intersect_domain(where), writers)
        first: Value = []
        for writer, pairs in seen.plain:
            first += pulled(self.stored(writer), pairs)
        self._require_written(buffer, frame, seen.nothing)
        if not seen.updates:
            return first
        combiners = {writer.combiner for writer, _ in seen.updates}
        if len(combiners) > 1:
            raise Unknown(f"updates of {buffer.name} by several operations")
        combiner = combiners.pop()
        if seen.updates[0][0].group is not None:
            return self._component(frame, where, seen, first, combiner)
        terms: list[Term] = []
        reached = isl.Set.empty(where.get_space())
        for writer, pairs in seen.updates:
            terms += terms_of(self.stored(writer), pairs, combiner, _hint(writer))
            reached = reached.union(pairs.domain())
        reached = reached.coalesce()
        identity = reached.identity()
        terms += terms_of(first, identity, combiner)
        total = Alternative(reached, ("sum", combiner), (Leaf(total=sum_of(combiner, terms)),))
        if where.is_subset(reached):
            return [total]
        return [total, *_outside(first, reached)]

    @staticmethod
    def _require_written(buffer: ir.Buffer, frame: InstanceSet, nothing: isl.Set) -> None:
        """Check that no instance of a frame reads an unwritten element."""
        if not nothing.is_empty():
            # Extended frames enumerate all positions, including some that may not be read.
            what = "may be read" if isinstance(frame, Extended) else "is read"
            raise Mismatch(f"an unwritten element of {buffer.name} {what}", min_sizes(nothing))

    def _component(
        self, frame: InstanceSet, where: isl.Set, seen: Seen, first: Value, key: str
    ) -> Value:
        """One component of a tuple: a part of one sum of tuples.

        All components start from the identity of the combination and see the same steps.
        """
        group = seen.updates[0][0].group
        assert group is not None
        position = group.statements.index(seen.updates[0][0])
        reached = reduce(lambda a, b: a.union(b), (p.domain() for _, p in seen.updates)).coalesce()
        memo = (frame.name, key, *sorted(_steps_seen(seen)))
        if memo not in self._tuples:
            starts = [_constant(first, reached, group.step.buffers[position].dtype)]
            for k, other in enumerate(group.step.buffers):
                if k == position:
                    continue
                result = self._companion(frame, seen, position, k, other)
                begun: Value = []
                for writer, pairs in result.plain:
                    begun += pulled(self.stored(writer), pairs)
                starts.insert(k, _constant(begun, reached, other.dtype))
            require_laws(key, group.combination, starts)
            terms: list[Term] = []
            for writer, pairs in seen.updates:
                terms += terms_of(self.stored(writer), pairs, key, _hint(writer))
            self._tuples[memo] = Leaf(total=sum_of(key, terms))
        part = Alternative(reached, ("part", position, ("sum", key)), (self._tuples[memo],))
        return [part, *([] if where.is_subset(reached) else _outside(first, reached))]

    def _companion(
        self, frame: InstanceSet, seen: Seen, mine: int, its: int, buffer: ir.Buffer
    ) -> Seen:
        """The stores of another tuple component that an instance would see."""
        expected: dict[Statement, isl.Map] = {}
        parts: list[isl.Map] = []
        for writer, pairs in seen.updates:
            group = writer.group
            if (
                group is None
                or writer is not group.statements[mine]
                or group.step.buffers[its] is not buffer
            ):
                raise Unknown(f"{buffer.name} is sometimes updated jointly with a different buffer")
            twin = group.statements[its]
            expected[twin] = pairs.to(twin.frame.name)
            parts.append(expected[twin].apply_range(twin.write))
        element = reduce(lambda a, b: a.union(b), parts)
        result = self.flow.seen(frame, element, self._writers.get(buffer, []))
        same = len(result.updates) == len(expected) and all(
            w in expected and pairs.is_equal(expected[w]) for w, pairs in result.updates
        )
        if not (same and element.is_single_valued() and result.nothing.is_empty()):
            raise Unknown(f"{buffer.name} is not always updated together with another buffer")
        return result

    def _load(self, load: ir.BufferLoad, frame: InstanceSet, where: isl.Set) -> Value:
        if load.predicate is not None:
            plain = ir.BufferLoad(load.buffer, load.indices)
            zero = ir.const(0, load.dtype)
            return self._choice(load.predicate, plain, zero, frame, where)
        buffer, indices = self.program.resolve(load.buffer, load.indices)
        texts = [frame.index(i) for i in indices]
        known = [t for t in texts if t is not None]
        if len(known) == len(texts):
            return self.read(frame, buffer, frame.relation(known), where)
        return self._gather(buffer, indices, texts, frame, where)

    def _gather(
        self,
        buffer: ir.Buffer,
        indices: Sequence[ir.Expr],
        texts: Sequence[str | None],
        frame: InstanceSet,
        where: isl.Set,
    ) -> Value:
        """A data-dependent read: a selection among the elements at all positions.

        If all positions evaluate to integers of the instance (for example from an index table that
        the program itself computes), the read is direct.
        """
        hidden = [k for k, t in enumerate(texts) if t is None]
        positions = [self.value(indices[k], frame, where) for k in hidden]
        if all(one.skeleton == ("int",) for value in positions for one in value):
            result: Value = []
            for chosen in itertools.product(*positions):
                part = reduce(lambda a, b: a.intersect(b), (one.where for one in chosen), where)
                if not part.is_empty():
                    known = dict(zip(hidden, chosen, strict=True))
                    result += self.read(frame, buffer, _position(frame, texts, known), part)
            return result
        names = {**self.program.sizes, **frame.names}
        extents = [size_text(buffer.shape[k], names) for k in hidden]
        wide = Extended(frame, self.program.fresh("G"), extents)
        places = dict(zip(hidden, wide.added, strict=True))
        at = [t if t is not None else places[k] for k, t in enumerate(texts)]
        everywhere = wide.shrink.intersect_range(where)
        value = self.read(wide, buffer, wide.relation(at), everywhere.domain())
        return [
            one
            for part, held in by_instance(value, everywhere)
            for one in Table(wide, positions, held).chosen_of(part)
        ]

    # ------------------------------------------------------------------ expressions
    def value(self, expr: ir.Expr, frame: InstanceSet, where: isl.Set) -> Value:
        """The value of an expression at a subset of a frame's instances."""
        text = frame.index(expr)
        if text is not None:
            return [
                Alternative(where, ("int",), (Leaf(frame.relation([text]), number=constant(expr)),))
            ]
        if expr.dtype.is_bool:
            held = frame.condition(expr)
            if held is not None:
                return parted(where, held)
        match expr:
            case ir.FloatImm():
                number = float(expr.type.numpy().type(expr.value))
                return [Alternative(where, ("c", expr.type.name, repr(number)))]
            case ir.IntImm():
                return [Alternative(where, ("c", expr.type.name, repr(expr.value)))]
            case ir.BufferLoad():
                return self._load(expr, frame, where)
            case ir.Select():
                return self._choice(expr.condition, expr.true_value, expr.false_value, frame, where)
            case ir.Call():
                return self._call(expr, frame, where)
            case ir.Cast():
                inner = self.value(expr.value, frame, where)
                return apply(("cast", expr.type.name, expr.value.dtype.name), [inner], where)
            case ir.BinaryOp() | ir.And() | ir.Or():
                name = COMBINERS.get(type(expr), type(expr).__name__)
                args = [self.value(a, frame, where) for a in (expr.a, expr.b)]
                return apply((name, expr.dtype.name), args, where)
            case ir.CompareOp():
                args = [self.value(a, frame, where) for a in (expr.a, expr.b)]
                return apply((type(expr).__name__, expr.a.dtype.name), args, where)
            case ir.Not():
                return apply(("not",), [self.value(expr.a, frame, where)], where)
            case ir.Let():
                inner = ir.substitute(expr.body, {expr.var: expr.value})
                return self.value(inner, frame, where)
            case ir.Var() if expr in self._scalars:
                return [Alternative(where, ("scalar", self._scalars[expr]))]
            case _:
                raise Unknown(f"an unsupported expression: {type(expr).__name__} {expr!r}")

    def _call(self, call: ir.Call, frame: InstanceSet, where: isl.Set) -> Value:
        if call.op == "if_then_else":
            test, yes, no = call.args
            return self._choice(test, yes, no, frame, where)
        if call.op == "likely":
            return self.value(call.args[0], frame, where)
        if call.op == "reinterpret" and call.args[0].dtype is call.dtype:
            # As in memory, an index becomes a value, which wraps around.
            return kept_in(self.value(call.args[0], frame, where), call.dtype)
        if call.op == "as_index":
            inner = self.value(call.args[0], frame, where)
            known = all(one.skeleton == INTEGER for one in inner)
            return inner if known else apply((call.op, call.type.name), [inner], where)
        if call.op == "undef":
            return [Alternative(where, ("undefined", next(self._undefined)))]
        names = tuple(a.value for a in call.args if isinstance(a, ir.StringImm))
        args = [a for a in call.args if not isinstance(a, ir.StringImm)]
        if is_index(call, frame.names):
            return self._of_indices(call, frame, where)
        if ir.op_row(call.op).kind != "pure" or call.op == "constant_data":
            raise Unknown(f"the call of {call.op}")
        return apply(
            (call.op, call.type.name, *names), [self.value(a, frame, where) for a in args], where
        )

    def _of_indices(self, call: ir.Call, frame: InstanceSet, where: isl.Set) -> Value:
        """A shift or mask of indices, which must be the same number as that of values."""
        args = [self.value(a, frame, where) for a in call.args]
        held = all(kept_in(a, call.dtype) == a for a in args)
        if call.op == "shift_left" or not held:
            raise Unknown(f"an index with a {call.op} that is not quasi-affine")
        return apply((call.op, call.type.name), args, where)

    def _choice(
        self, test: ir.Expr, yes: ir.Expr, no: ir.Expr, frame: InstanceSet, where: isl.Set
    ) -> Value:
        result: Value = []
        for one in self.value(test, frame, where):
            if one.skeleton == TRUE:
                result += self.value(yes, frame, one.where)
            elif one.skeleton == FALSE:
                result += self.value(no, frame, one.where)
            else:
                sides = [self.value(e, frame, one.where) for e in (yes, no)]
                result += apply(("select",), [[one], *sides], one.where)
        return result


def _position(
    frame: InstanceSet, texts: Sequence[str | None], known: dict[int, Alternative]
) -> isl.Map:
    """Instance → position, with some components taken from integer values."""
    parts = [
        frame.relation([text]) if text is not None else known[k].leaves[0].at
        for k, text in enumerate(texts)
    ]
    return reduce(lambda a, b: a.flat_range_product(b), [p for p in parts if p is not None])


def _whole(one: Alternative, key: str) -> Alternative:
    """Simplify a tuple of all the parts of one tuple to that tuple."""
    _, *parts = one.skeleton
    whole = parts == [("part", k, ("sum", key)) for k in range(len(parts))]
    if whole and all(leaf is one.leaves[0] for leaf in one.leaves):
        return Alternative(one.where, ("sum", key), one.leaves[:1])
    return one


def _steps_seen(seen: Seen) -> list[str]:
    """The steps an instance sees, as text: the same for all components of a tuple."""
    return [
        str(pairs.to(w.group.statements[0].frame.name))
        for w, pairs in seen.updates
        if w.group is not None
    ]


def _outside(value: Value, reached: isl.Set) -> Value:
    """The alternatives of a value outside of the instances `reached`."""
    rest = [restricted(one, one.where.subtract(reached)) for one in value]
    return [one for one in rest if not one.where.is_empty()]


def _constant(value: Value, where: isl.Set, dtype: ir.DType) -> ir.Expr | None:
    """The constant that a value equals at the given instances; None if not one constant."""
    result: set[float] = set()
    for one in value:
        if one.where.is_disjoint(where):
            continue
        number = (
            one.leaves[0].number
            if one.skeleton == ("int",)
            else (float(one.skeleton[2]) if one.skeleton[0] == "c" else None)
        )
        if number is None:
            return None
        result.add(number)
    return ir.const(result.pop(), dtype) if len(result) == 1 else None


def _hint(writer: Statement) -> isl.Map:
    """Reduction iterators of an update, to match terms that their reads do not distinguish."""
    return writer.frame.relation([it.name for it in writer.frame.place.iters if it.reduces])
