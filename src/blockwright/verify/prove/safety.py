"""Safety checks: accesses are in bounds, and concurrent iterations do not race."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce

import msgspec

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.affine import constant
from blockwright.verify.budget import begin_step
from blockwright.verify.model.evaluate import Values
from blockwright.verify.model.instance_sets import (
    EnclosingLoop,
    InstanceSet,
    min_sizes,
    size_text,
)
from blockwright.verify.model.operators import FALSE, INTEGER, TRUE, apply
from blockwright.verify.model.positions import Taken
from blockwright.verify.model.program import ProgramModel
from blockwright.verify.model.statement import Statement
from blockwright.verify.model.terms import Alternative, Term
from blockwright.verify.prove.match import require_covered
from blockwright.verify.verdict import Mismatch, Unknown


class CheckedAccess(msgspec.Struct, frozen=True, eq=False):
    """An access of one statement.

    Attributes:
        element: instance → element; copies of a privatized buffer are distinguished.
        atomic: whether it is the update of an atomic operation; the operation's operands are read
            like those of any other statement.
    """

    statement: Statement
    buffer: ir.Buffer
    element: isl.Map
    writes: bool
    atomic: bool = False


Tests = tuple[ir.Expr, ...]
_DIVISIONS = (ir.FloorDiv, ir.FloorMod, ir.Div, ir.Mod)


class Demands(msgspec.Struct, frozen=True, eq=False):
    """Values that a program uses in a way that not all values allow.

    Attributes:
        always: those of each run.
        conditional: those under conditions on data: the value, and the value with the conditions.
    """

    always: list[Term]
    conditional: list[tuple[Term, Term]]


class Safety:
    """Checks one program and collects its accesses (`touches`) and what it leaves to its data.

    Attributes:
        demands: values that have to be in some range, by what that range is.
    """

    def __init__(self, program: ProgramModel, values: Values) -> None:
        self.program = program
        self.values = values
        self.touches: list[CheckedAccess] = []
        self.demands: dict[str, Demands] = {}

    def check(self) -> None:
        """Check that every access is in bounds and that concurrent iterations do not race."""
        for statement in self.program.statements:
            if statement.value is None:
                continue
            where = statement.frame.domain
            self.touches.append(
                CheckedAccess(statement, statement.buffer, statement.write, True, statement.atomic)
            )
            self._inside(statement, statement.buffer, statement.indices, where)
            for taken in statement.taken:
                self._require_taken(statement, taken)
            self._expression(statement, statement.value, where)
            self.values.stored(statement)  # even if no result depends on it
            if statement.combiner:
                self.values.require_begun(statement)
        for bound in self.program.bound:
            assert bound.value is not None
            self._expression(bound, bound.value, bound.frame.domain)
        self._races()

    def _require_taken(self, statement: Statement, taken: Taken) -> None:
        """Check that a read of an index table yields the formula that replaced it."""
        frame = statement.frame
        name = taken.read.buffer.name
        self._read(statement, taken.read, frame.domain, ())
        expected = self.values.value(taken.formula, frame, frame.domain)
        if any(one.skeleton != INTEGER for one in expected):
            raise Unknown(f"a position in {name} is not quasi-affine")
        try:
            result = self.values.value(taken.read, frame, frame.domain)
        except Mismatch:
            result = []
        whole = reduce(
            lambda a, b: a.union(b),
            (one.where for one in result),
            isl.Set.empty(frame.domain.get_space()),
        )
        if not frame.domain.is_subset(whole):
            raise Unknown(f"{name} is read where it may be unwritten")
        for one in result:
            at = one.leaves[0].at if one.skeleton == INTEGER else None
            for other in expected:
                both, wanted = one.where.intersect(other.where), other.leaves[0].at
                if at is None or wanted is None or not _equal_at(both, at, wanted):
                    raise Unknown(f"{name} may differ from its formula")

    # ------------------------------------------------------------------ bounds
    def _expression(
        self, statement: Statement, expr: ir.Expr, where: isl.Set, tests: Tests = ()
    ) -> None:
        """Check the accesses of an expression, and collect what it demands of values.

        Args:
            tests: the conditions on data under which it is evaluated.
        """
        if isinstance(expr, ir.Call) and expr.op == "if_then_else":
            test, yes, no = expr.args
            self._expression(statement, test, where, tests)
            held = statement.frame.condition(test)
            if held is None:
                self._expression(statement, yes, where, (*tests, test))
                self._expression(statement, no, where, (*tests, ir.logical_not(test)))
                return
            self._expression(statement, yes, where.intersect(held), tests)
            self._expression(statement, no, where.subtract(held), tests)
        elif isinstance(expr, ir.BufferLoad):
            self._read(statement, expr, where, tests)
        else:
            for child in expr.children():
                if isinstance(child, ir.Expr):
                    self._expression(statement, child, where, tests)
            if not where.is_empty():
                self._operation(statement, expr, where, tests)

    def _operation(self, statement: Statement, expr: ir.Expr, where: isl.Set, tests: Tests) -> None:
        """Demand divisors other than 0, and the checks of checked values."""
        frame = statement.frame
        if isinstance(expr, _DIVISIONS) and expr.dtype.is_int:
            known = constant(expr.b)
            if known is not None and known != 0:
                return
            for one in self.values.value(expr.b, frame, where):
                if not _is_nonzero(one):
                    self._demand("a divisor", statement, one, tests)
        elif isinstance(expr, ir.Call) and expr.op in ("checked_index", "checked_divisor"):
            for one in self.values.value(expr, frame, where):
                if one.skeleton != INTEGER:
                    self._demand("a checked value", statement, one, tests)

    def _demand(self, what: str, statement: Statement, one: Alternative, tests: Tests) -> None:
        """Note that a value is used in a way that not all values allow."""
        demands = self.demands.setdefault(what, Demands([], []))
        frame = statement.frame
        conditions = [self.values.value(t, frame, one.where) for t in tests]
        for case in apply(("under",), [[one], *conditions], one.where):
            _, value, *held = case.skeleton
            if FALSE in held:
                continue
            nothing = isl.Map.from_range(case.where)
            leaves = case.leaves[: len(one.leaves)]
            plain = Term(nothing, value, leaves)
            held = [test for test in held if test != TRUE]
            if held:
                whole = Term(nothing, ("under", value, *held), case.leaves)
                demands.conditional.append((plain, whole))
            else:
                demands.always.append(plain)

    def _read(
        self, statement: Statement, load: ir.BufferLoad, where: isl.Set, tests: Tests
    ) -> None:
        if load.predicate is not None:
            self._expression(statement, load.predicate, where, tests)
            held = statement.frame.condition(load.predicate)
            tests = tests if held is not None else (*tests, load.predicate)
            where = where if held is None else where.intersect(held)
        if where.is_empty():
            return
        buffer, indices = self.program.resolve(load.buffer, load.indices)
        self._inside(statement, buffer, indices, where)
        texts = [statement.frame.index(i) for i in indices]
        known = [t for t in texts if t is not None]
        if len(known) == len(texts):
            element = self.program.access(statement.frame, buffer, known).intersect_domain(where)
        else:
            self._positions(statement, buffer, indices, texts, where, tests)
            box = self.program.box(buffer, statement.frame)
            anywhere = isl.Map.from_domain_and_range(where, box)
            element = self.program.element(statement.frame, buffer, anywhere)
        self.touches.append(CheckedAccess(statement, buffer, element, False))

    def _inside(
        self, statement: Statement, buffer: ir.Buffer, indices: Iterable[ir.Expr], where: isl.Set
    ) -> None:
        """Check that known positions lie inside the buffer."""
        frame = statement.frame
        names = {**self.program.sizes, **frame.names}
        known = [
            (t, size_text(n, names))
            for i, n in zip(indices, buffer.shape, strict=True)
            if (t := frame.index(i)) is not None
        ]
        if not known:
            return
        inside = " and ".join(f"0 <= {t} < {n}" for t, n in known)
        outside = where.subtract(self.program.space.set(f"{frame.tuple} : {inside}"))
        if not outside.is_empty():
            raise Mismatch(f"an access outside of {buffer.name}", min_sizes(outside))

    def _positions(
        self,
        statement: Statement,
        buffer: ir.Buffer,
        indices: Iterable[ir.Expr],
        texts: list[str | None],
        where: isl.Set,
        tests: Tests,
    ) -> None:
        frame = statement.frame
        for index, text, extent in zip(indices, texts, buffer.shape, strict=True):
            if text is not None:
                continue
            self._expression(statement, index, where, tests)
            for one in self.values.value(index, frame, where):
                if one.skeleton == INTEGER:
                    self._known_position(buffer, one, extent)
                    continue
                size = size_text(extent, self.program.sizes)
                self._demand(f"a data-dependent position below {size}", statement, one, tests)

    def _known_position(self, buffer: ir.Buffer, one: Alternative, extent: ir.Expr) -> None:
        at, size = one.leaves[0].at, size_text(extent, self.program.sizes)
        assert at is not None
        reached = at.intersect_domain(one.where)
        inside = self.program.space.set(f"[x] : 0 <= x < {size}")
        outside = reached.subtract_range(inside).domain()
        if not outside.is_empty():
            raise Mismatch(f"an access outside of {buffer.name}", min_sizes(outside))

    # ------------------------------------------------------------------ races
    def _races(self) -> None:
        free = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED, ir.ForKind.THREAD_BINDING)
        loops = {
            loop.name: loop
            for t in self.touches
            for loop in t.statement.frame.place.loops
            if loop.kind in free
        }
        for name, loop in loops.items():
            inside = [t for t in self.touches if name in t.statement.frame.path]
            by_buffer: dict[ir.Buffer, list[CheckedAccess]] = {}
            for touch in inside:
                by_buffer.setdefault(touch.buffer, []).append(touch)
            for buffer, touches in by_buffer.items():
                if any(t.writes for t in touches) and not self._combine(touches, loop):
                    self._apart(buffer, touches, name)

    @staticmethod
    def _apart(buffer: ir.Buffer, touches: list[CheckedAccess], loop: str) -> None:
        """Check that an element written by one iteration is accessed by no other iteration, except
        by atomic updates of both."""
        begin_step(f"iterations that meet in {buffer.name}")
        plain, atomic, reads = (
            [_iterations(t, loop) for t in touches if (t.writes, t.atomic) == kind]
            for kind in ((True, False), (True, True), (False, False))
        )
        if plain:
            written = _union(plain)
            if not written.is_single_valued():
                raise Unknown(f"concurrent iterations may write one element of {buffer.name}")
            if atomic or reads:
                met = _union([*atomic, *reads]).intersect_domain(written.domain())
                _require_own(written.union(met), buffer)
        if atomic and reads:
            changed, seen = _union(atomic), _union(reads)
            both = changed.domain().intersect(seen.domain())
            _require_own(changed.union(seen).intersect_domain(both), buffer)

    def _combine(self, touches: list[CheckedAccess], loop: EnclosingLoop) -> bool:
        """Whether iterations jointly update elements with a commutative operation.

        That holds if the loop drives only reduction iterators of one block, for the lanes of an
        innermost loop without an initialization, and for the threads of a block. No other block
        sees the results before all the reduction loops have ended.
        """
        statements = [t.statement for t in touches]
        block = statements[0].block
        if any(s.block is not block for s in statements) or not all(
            t.writes and (t.statement.combiner or t.statement.init) for t in touches
        ):
            return False
        if not all(_gives_terms(s, loop) for s in statements) or any(
            loop.name in bound.frame.path for bound in self.program.bound
        ):
            return False
        if loop.kind is ir.ForKind.VECTORIZED:
            around = [s.frame.place.loops for s in statements]
            return all(loops[-1] is loop for loops in around) and not any(
                s.init for s in statements
            )
        buffer = touches[0].buffer
        shared = buffer.scope == "global" or buffer.scope.startswith("shared")
        reduced = {name for s in statements for name in _reduction_loops(s)}
        return (
            loop.tag.startswith("threadIdx")
            and shared
            and not any(
                t.statement.block is not block and reduced & set(t.statement.frame.path)
                for t in self.touches
                if t.buffer is buffer
            )
        )


def require_demands(before: Safety, after: Safety) -> None:
    """Check that what `after` demands of values, `before` demands as well.

    Then arguments for which the positions of `before` are in bounds, and its divisors are not 0,
    are safe for `after` as well. What `after` demands under a condition on data, `before` demands
    always or under the same condition.
    """
    nothing = Demands([], [])
    for what, demands in after.demands.items():
        known = before.demands.get(what, nothing)
        require_covered(known.always, demands.always, what)
        under = [whole for _, whole in known.conditional]
        for plain, whole in demands.conditional:
            try:
                require_covered(known.always, [plain], what)
            except Mismatch:
                require_covered(under, [whole], what)


def _is_nonzero(one: Alternative) -> bool:
    """Whether a divisor is known not to be 0."""
    if one.skeleton != INTEGER:
        return one.skeleton[0] == "checked_divisor"
    at = one.leaves[0].at
    zero = isl.Set("{ [0] }", one.where.context)
    return at is not None and at.intersect_domain(one.where).range().is_disjoint(zero)


def _gives_terms(statement: Statement, loop: EnclosingLoop) -> bool:
    """Whether a loop drives only reduction iterators of a statement's block, on which the updated
    element does not depend."""
    place, block = statement.frame.place, statement.block
    if block is None:
        return False
    driven = {it.name: it.reduces for it in place.iters if _mentions(it.binding, loop.name)}
    own = [it for it in place.iters[len(place.iters) - len(block.iter_vars) :] if it.reduces]
    if not driven or not driven.keys() <= {it.name for it in own}:
        return False
    texts = [statement.frame.index(i) for i in statement.indices]
    return not any(_mentions(t, it.name) for t in texts if t is not None for it in own)


def _reduction_loops(statement: Statement) -> list[str]:
    """The loops that drive reduction iterators."""
    place = statement.frame.place
    bindings = [it.binding for it in place.iters if it.reduces]
    return [f.name for f in place.loops if any(_mentions(b, f.name) for b in bindings)]


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _iterations(touch: CheckedAccess, loop: str) -> isl.UnionMap:
    """(outer iterations, element) → iteration of a loop that accesses it."""
    frame: InstanceSet = touch.statement.frame
    depth = frame.path.index(loop)
    outer, own = frame.time(frame.path[:depth]), frame.time((loop,))
    where = outer.range_product(touch.element)
    return where.reverse().apply_range(own).to_union_map()


def _require_own(users: isl.UnionMap, buffer: ir.Buffer) -> None:
    """Check that one iteration alone accesses each element."""
    if not users.is_single_valued():
        raise Unknown(
            f"an iteration may access what a concurrent iteration writes to {buffer.name}"
        )


def _equal_at(where: isl.Set, a: isl.Map, b: isl.Map) -> bool:
    """Whether two relations agree at the given instances."""
    return a.intersect_domain(where).is_equal(b.intersect_domain(where))


def _union(parts: Iterable[isl.UnionMap]) -> isl.UnionMap:
    return reduce(lambda a, b: a.union(b), parts)
