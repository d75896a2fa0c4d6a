"""Partition loops annotated `loop_partition` to peel bounds checks off the main iterations.

Before::

    for i in range(ceildiv(n, 16), annotations={"loop_partition": True}):
        for j in range(16):
            if i * 16 + j < n:
                B[i * 16 + j] = A[i * 16 + j]

After::

    for i in range(n // 16):
        for j in range(16):
            B[i * 16 + j] = A[i * 16 + j]
    for i_1 in range(ceildiv(n, 16) - n // 16):
        for j in range(16):
            if (i_1 + n // 16) * 16 + j < n:
                ...

Conditions that fail only in the first iterations, such as `1 <= i` at a border, likewise produce a
prologue. Conditions that fail in all iterations from some point on, such as a causal mask, produce
a last part in which they are false:

    for j in range(n):              # beyond i nothing is added
        S[i] = S[i] + T.Select(j <= i, A[j], T.float32(-0.0))

A parallel loop stays one loop, and its body branches between the first two forms. A parallel loop
may be a fusion of several loops. Where no condition is linear in its variable, the branch tests
conditions on digits of the variable instead:

    for t in T.parallel(4 * n):
        if t % 4 * 64 + 63 < 196:
            ...                     # without `t % 4 * 64 + j < 196`

Conditions of `if`, `if_then_else` and `Select` count, and so do the comparisons implied by `min`
and `max` of indices. In a loop nest the outer loop is split first. Where its conditions hold for
all iterations of the inner loops, those keep their bounds. A condition whose slack shrinks with the
outer loop and grows with the inner one, or the reverse, as in `j <= i`, is left to the inner loop.
"""

from __future__ import annotations

from functools import reduce

import msgspec

from blockwright.analysis.access.tree import jumps
from blockwright.arith import Analyzer, defined, eval_set
from blockwright.arith.condition import conjuncts, room_of
from blockwright.ir import (
    Call,
    Expr,
    For,
    ForKind,
    Node,
    PrimFunc,
    Range,
    Stmt,
    Var,
    add,
    cast_to,
    const,
    const_int,
    floordiv,
    maximum,
    minimum,
    structural_equal,
    sub,
    substitute,
    uses_var,
)
from blockwright.ir import expr as E
from blockwright.ir import stmt as S
from blockwright.ir.annotations import LOOP_PARTITION
from blockwright.lower.context import LowerContext, function_analyzer, lowering_pass
from blockwright.lower.rewrite import (
    Analysed,
    Instantiate,
    Statements,
    reads_memory,
    sequence,
    walk_code,
)


@lowering_pass
def partition_loops(func: PrimFunc, context: LowerContext) -> PrimFunc:
    """Split annotated loops where their conditions are known to hold."""
    partition = _Partition(function_analyzer(func))
    body = partition(func.body)
    for name in [name for name in partition.whole if name not in partition.cut]:
        context.note(
            f"loop {name} is not partitioned: no condition in it is a bound on the loop variable"
        )
    return func.replace(body=body)


class _Cuts(msgspec.Struct, frozen=True):
    """Split points of a loop.

    Attributes:
        begins: first iterations at which conditions hold from then on.
        ends: first iterations at which conditions may fail.
        settled: replacements of conditions that hold between the two.
        failed: replacements of conditions that fail in the last iterations.
        beyond: the first iteration in which all of `failed` fail.
    """

    begins: list[Expr]
    ends: list[Expr]
    settled: dict[Node, Node]
    failed: dict[Node, Node]
    beyond: Expr | None


class _Partition(Analysed, Statements):
    def __init__(self, analyzer: Analyzer) -> None:
        super().__init__(analyzer)
        self.around = analyzer  # facts that hold even where the current loop has no iteration
        self.bound: set[Var] = set()  # variables defined inside the current loop
        self.cut: dict[str, None] = {}  # names of loops with a copy that was split
        self.whole: dict[str, None] = {}  # names of loops with a copy that was not split

    def rewrite_For(self, node: For) -> Stmt:
        if node.annotations.get(LOOP_PARTITION):
            rest = {k: v for k, v in node.annotations.items() if k != LOOP_PARTITION}
            node = node.replace(annotations=rest)
            self.around = self.analyzer
            with self.inside(node.loop_var, node.dom):
                result = self._parts(node)
            # Bounds of parts must not be simplified under the assumption that the loop iterates.
            parts = self._split(node, result) if isinstance(result, _Cuts) else result
            if parts is not node:
                return self(parts)  # inner loops now have fewer conditions
        with self.inside(node.loop_var, node.dom):
            return node.replace(body=self(node.body))

    def _parts(self, node: For) -> Stmt | _Cuts:
        """The split points of the loop, or its replacement; the loop itself if nothing is known."""
        if node.kind not in (ForKind.SERIAL, ForKind.PARALLEL) or jumps(node.body):
            return node  # a jump out of the first part would have to skip the others as well
        begins, ends, settled = self._solve(node)
        failed, beyond = self._failing(node)
        asked, known = ([], {}) if settled else self._digits(node)
        if known:
            self.cut[node.loop_var.name] = None
            fast, slow = (
                Instantiate(known, fresh_definitions=False)(node.body),
                Instantiate({})(node.body),
            )
            return node.replace(
                body=S.IfThenElse(reduce(E.And, asked), fast, slow) if asked else fast
            )
        if not settled:
            if self._asks(node):
                self.whole[node.loop_var.name] = None
            return node
        self.cut[node.loop_var.name] = None
        return _Cuts(begins, ends, settled, failed, beyond)

    def _asks(self, node: For) -> bool:
        """Whether any condition in the loop depends on its variable."""
        tests = (test for inner in walk_code(node.body) for test, *_ in _conditions(inner))
        return any(uses_var(test, node.loop_var) for test in tests)

    def _solve(self, node: For) -> tuple[list[Expr], list[Expr], dict[Node, Node]]:
        """Find the split points of a loop.

        Returns the first iterations from which conditions hold, the first iterations at which
        conditions may fail, and the replacements that hold in between."""
        self.bound = {node.loop_var}
        begins: list[Expr] = []
        ends: list[Expr] = []
        settled: dict[Node, Node] = {}
        domains: dict[Var, Range] = {}
        for inner in walk_code(node.body):
            if isinstance(inner, For):
                domains[inner.loop_var] = inner.dom
            elif isinstance(inner, (S.LetStmt, E.Let)):
                self.bound.add(inner.var)
        inside = [
            n.loop_var
            for n in walk_code(node.body)
            if isinstance(n, For) and n.annotations.get(LOOP_PARTITION) and n.kind is ForKind.SERIAL
        ]
        for inner in walk_code(node.body):
            for condition, whole, value in _conditions(inner):
                result = self._bound(condition, node.loop_var, domains)
                if result is not None and self._is_left(condition, node.loop_var, inside):
                    continue
                if result is not None and whole not in settled:
                    settled[whole] = value
                    bound, first = result
                    (begins if first else ends).append(bound)
        return begins, ends, settled

    def _digits(self, node: For) -> tuple[list[Expr], dict[Node, Node]]:
        """Tests on the variable of a parallel loop, and the conditions that hold where they do."""
        asked: list[Expr] = []
        known: dict[Node, Node] = {}
        if node.kind is not ForKind.PARALLEL:
            return asked, known
        domains = {n.loop_var: n.dom for n in walk_code(node.body) if isinstance(n, For)}
        inside = {*domains, *self.bound} - {node.loop_var}
        for inner in walk_code(node.body):
            if isinstance(inner, (E.Min, E.Max)):
                continue  # neither operand is known to be the common case
            for condition, whole, value in _conditions(inner):
                room = room_of(self.analyzer, condition)
                if room is None or whole in known or not uses_var(room, node.loop_var):
                    continue
                if reads_memory(room):
                    continue  # the loaded value may change while the loop runs
                smallest = eval_set(room, domains, self.analyzer).min
                if smallest is None or uses_var(smallest, inside):
                    continue
                smallest = defined(smallest, self.analyzer)
                if smallest is None:
                    continue
                holds = self.analyzer.simplify(E.GE(smallest, const(0, smallest.dtype)))
                if self.analyzer.prove(E.Not(holds)):
                    continue
                known[whole] = value
                if not self.analyzer.prove(holds) and not _contains(asked, holds):
                    asked.append(holds)
        return asked, known

    def _bound(
        self, condition: Expr, var: Var, domains: dict[Var, Range]
    ) -> tuple[Expr, bool] | None:
        """The least value of `var` at which `condition` may fail, with False if it holds below that
        value; with True, the least value from which it holds."""
        room = room_of(self.analyzer, condition)
        if room is None or not uses_var(room, var):
            return None
        if reads_memory(room):
            return None  # the loaded value may change while the loop runs
        step = self._step(room, var)
        if step == 0:
            return None
        if _domains_use(room, var, domains):
            return None
        # room(var) = room(0) + step * var >= 0 for every value of the inner loops
        start = substitute(room, {var: const(0, var.dtype)})
        smallest = eval_set(start, domains, self.analyzer).min
        if smallest is None or uses_var(smallest, {*domains, *self.bound}):
            return None
        smallest = defined(smallest, self.around)
        if smallest is None:
            return None
        if step > 0:
            return sub(
                const(0, smallest.dtype), floordiv(smallest, const(step, smallest.dtype))
            ), True
        return add(floordiv(smallest, const(-step, smallest.dtype)), 1), False

    def _is_left(self, condition: Expr, var: Var, inside: list[Var]) -> bool:
        """Whether the condition is better split at a partitioned loop inside this one.

        That is so where the slack of the condition moves in opposite directions: few iterations of
        `i` satisfy `j <= i` for all `j`, but each `i` has a range of `j` in which it holds.
        """
        room = room_of(self.analyzer, condition)
        assert room is not None
        step = self._step(room, var)
        return any(step * self._step(room, inner) < 0 for inner in inside if uses_var(room, inner))

    def _step(self, room: Expr, var: Var) -> int:
        """Change of the slack per iteration; 0 when unknown."""
        after = substitute(room, {var: E.Add(var, const(1, var.dtype))})
        return const_int(self.analyzer.simplify(E.Sub(after, room))) or 0

    def _failing(self, node: For) -> tuple[dict[Node, Node], Expr | None]:
        """Conditions that fail in all of the last iterations, and the first such iteration."""
        stop = add(node.min, node.extent)
        failed: dict[Node, Node] = {}
        beyond: Expr | None = None
        domains = {n.loop_var: n.dom for n in walk_code(node.body) if isinstance(n, For)}
        for inner in walk_code(node.body):
            if isinstance(inner, (E.Min, E.Max)):
                continue  # a minimum or maximum has no branch to drop
            for condition, whole, _ in _conditions(inner):
                first = self._first_failing(condition, node.loop_var, domains)
                if first is None or self.analyzer.prove(E.GE(first, stop)):
                    continue
                failed[whole] = const(False, "bool")
                beyond = first if beyond is None else maximum(beyond, first)
        return failed, beyond

    def _first_failing(self, condition: Expr, var: Var, domains: dict[Var, Range]) -> Expr | None:
        """The value of `var` from which `condition` fails for all values of inner loops."""
        room = room_of(self.analyzer, condition)
        if room is None or not uses_var(room, var):
            return None
        if reads_memory(room):
            return None  # the loaded value may change while the loop runs
        step = self._step(room, var)
        if step >= 0 or _domains_use(room, var, domains):
            return None
        largest = eval_set(substitute(room, {var: const(0, var.dtype)}), domains, self.analyzer).max
        if largest is None or uses_var(largest, {*domains, *self.bound}):
            return None
        largest = defined(largest, self.around)
        if largest is None:
            return None
        return add(floordiv(largest, const(-step, largest.dtype)), 1)

    def _split(self, node: For, cuts: _Cuts) -> Stmt:
        stop, kind = add(node.min, node.extent), node.loop_var.dtype
        first, middle = node.min, stop
        for begin in cuts.begins:
            first = maximum(first, begin)
        # Guards may be wider than the loop variable; what is clamped to the loop fits its type.
        first = cast_to(self.analyzer.simplify(minimum(first, stop)), kind)
        for end in cuts.ends:
            middle = minimum(middle, end)
        middle = cast_to(self.analyzer.simplify(maximum(first, middle)), kind)
        fast = Instantiate(cuts.settled, fresh_definitions=False)(node.body)
        if node.kind is ForKind.PARALLEL:
            slow = Instantiate({})(node.body)
            inside: Expr = E.LT(node.loop_var, middle)
            if cuts.begins:
                inside = E.And(E.GE(node.loop_var, first), inside)
            return node.replace(body=S.IfThenElse(inside, fast, slow))
        main = node.replace(min=first, extent=self.analyzer.simplify(sub(middle, first)), body=fast)
        head = [self._checked(node, node.min, first)] if cuts.begins else []
        cut = stop
        if cuts.beyond is not None:
            cut = self.analyzer.simplify(minimum(maximum(cuts.beyond, middle), stop))
            cut = cast_to(cut, kind)
        tail = [self._checked(node, middle, cut)] if cuts.ends else []
        if cuts.ends and cuts.beyond is not None:
            last = self._checked(node, cut, stop, cuts.failed)
            if self._asks(last):  # its other conditions fail from another iteration on
                last = last.replace(annotations={**last.annotations, LOOP_PARTITION: True})
            tail.append(last)
        return sequence([*head, main, *tail])

    def _checked(
        self, node: For, low: Expr, stop: Expr, known: dict[Node, Node] | None = None
    ) -> For:
        """The iterations from `low` up to `stop`, with conditions replaced as in `known` only."""
        var = Var(node.loop_var.name, node.loop_var.type)
        body = Instantiate({**(known or {}), node.loop_var: var})(node.body)
        left = self.analyzer.simplify(sub(stop, low))
        return For(var, low, left, node.kind, body, annotations=node.annotations)


def _domains_use(room: Expr, var: Var, domains: dict[Var, Range]) -> bool:
    """Whether the slack depends on inner loops whose ranges depend on `var`; it is then not linear
    in `var`."""
    pending: list[Expr] = [room]
    seen: set[Var] = set()
    while pending:
        used = {n for n in walk_code(pending.pop()) if isinstance(n, Var)}
        for inner in (used - seen) & domains.keys():
            seen.add(inner)
            ends = (domains[inner].min, domains[inner].extent)
            if any(uses_var(end, var) for end in ends):
                return True
            pending += ends
    return False


def _contains(tests: list[Expr], test: Expr) -> bool:
    return any(structural_equal(test, other) for other in tests)


def _conditions(node: Node) -> list[tuple[Expr, Node, Node]]:
    """Triples (condition, node it decides, replacement of that node where the condition holds)."""
    true = const(True, "bool")
    match node:
        case S.IfThenElse():
            tests = [node.condition]
        case Call(op="if_then_else"):
            tests = [node.args[0]]
        case E.Select():
            tests = [node.condition]
        case E.Min() if node.dtype.is_int and node.dtype.lanes == 1:
            return [(E.LE(node.a, node.b), node, node.a), (E.LE(node.b, node.a), node, node.b)]
        case E.Max() if node.dtype.is_int and node.dtype.lanes == 1:
            return [(E.GE(node.a, node.b), node, node.a), (E.GE(node.b, node.a), node, node.b)]
        case _:
            return []
    return [(part, part, true) for test in tests for part in conjuncts(test)]
