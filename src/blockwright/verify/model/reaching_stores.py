"""Reaching stores of a read: the last plain store of the element, and the updates since then.

The order of two statements is decided at the first point where their paths diverge. So a query
involves only the loops shared by a reader and its writers, often none; then the writers are visited
from last to first. With shared loops, the answer comes from isl's dataflow analysis or from a proof
that all stores of an element precede its reads.
"""

from __future__ import annotations

import itertools
from functools import reduce

import msgspec

from blockwright.verify import isl
from blockwright.verify.budget import begin_step
from blockwright.verify.model.instance_sets import InstanceSet, Step
from blockwright.verify.model.program import ProgramModel
from blockwright.verify.model.statement import Statement
from blockwright.verify.verdict import Unknown


class Seen(msgspec.Struct, frozen=True, eq=False):
    """The stores that reach a set of reads.

    Attributes:
        plain: last plain stores, each with the map reader instance → store instance.
        updates: updates since then, likewise; a reader instance may see many.
        nothing: reader instances that see no store.
    """

    plain: list[tuple[Statement, isl.Map]]
    updates: list[tuple[Statement, isl.Map]]
    nothing: isl.Set


def part(a: tuple[Step, ...], b: tuple[Step, ...]) -> int | None:
    """The first position at which two paths differ; None if one is a prefix of the other."""
    for k, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return k
    return None


class Flow:
    """Dataflow analysis of one program, with facts about each writer cached.

    Attributes:
        ahead: whether to try first if all stores of an element precede its reads. That gives
            simpler relations for some programs and costs more for others.
    """

    def __init__(self, program: ProgramModel, ahead: bool) -> None:
        self.program = program
        self.ahead = ahead
        self.by_name = {s.frame.name: s for s in program.statements}
        self._ordered: dict[Statement, bool] = {}
        self._injective: dict[Statement, bool] = {}

    def seen(self, frame: InstanceSet, read: isl.Map, writers: list[Statement]) -> Seen:
        """The stores seen by instances of a frame that read elements of a buffer."""
        begin_step(
            f"the stores seen by reads of {writers[0].buffer.name if writers else 'an input'}"
        )
        nothing = read.domain()
        if not writers:
            return Seen([], [], nothing)
        static = self._static(frame, writers)
        if static is not None:
            return self._in_order(read, static)
        result = self._before(frame, read, writers) if self.ahead else None
        return result or self._analysed(frame, read, writers)

    def unbegun(self, update: Statement, plain: list[Statement]) -> isl.Set:
        """Instances of an update that accumulate into an element no plain store has initialized."""
        begin_step(f"the initial values of updates of {update.buffer.name}")
        open_ones = update.write
        for writer in plain:
            pairs = writer.write.apply_range(update.write.reverse())
            if self._earlier(writer.frame, update.frame, pairs):
                open_ones = open_ones.subtract_domain(pairs.range())
        if open_ones.is_empty():
            return open_ones.domain()
        return self.seen(update.frame, open_ones, plain).nothing

    # ------------------------------------------------------------------ written order alone
    def _static(self, frame: InstanceSet, writers: list[Statement]) -> list[Statement] | None:
        """The writers before a reader, in program order; None if loops affect the order."""
        result: list[Statement] = []
        for writer in writers:
            at = part(frame.path, writer.frame.path)
            if at is None or any(isinstance(s, str) for s in frame.path[:at]):
                return None
            if _before(writer.frame.path, frame.path, at):
                result.append(writer)
        result.sort(key=_position)
        for first, second in itertools.pairwise(result):
            at = part(first.frame.path, second.frame.path)
            if at is None or any(isinstance(s, str) for s in first.frame.path[:at]):
                same = first.block is second.block and first.init and not second.init
                if not (same and second.combiner and self._starts(first, second)):
                    return None
        return result if all(w.combiner or self._once(w) for w in result) else None

    def _once(self, writer: Statement) -> bool:
        """Whether a statement stores each element at most once."""
        if writer not in self._injective:
            self._injective[writer] = writer.write.is_injective()
        return self._injective[writer]

    def _starts(self, init: Statement, update: Statement) -> bool:
        """Whether an initialization that runs once precedes all updates of its element."""
        if init not in self._ordered:
            depth = part(init.frame.path, update.frame.path)
            steps = init.frame.path[:depth]
            pairs = update.write.apply_range(init.write.reverse())  # update → init of the element
            late = update.frame.time(steps).lex_lt_map(init.frame.time(steps))
            self._ordered[init] = self._once(init) and late.intersect(pairs).is_empty()
        return self._ordered[init]

    def _in_order(self, read: isl.Map, writers: list[Statement]) -> Seen:
        plain: list[tuple[Statement, isl.Map]] = []
        updates: list[tuple[Statement, isl.Map]] = []
        open_reads = read
        for writer in reversed(writers):
            pairs = open_reads.apply_range(writer.write.reverse())
            if pairs.is_empty():
                continue
            if writer.combiner:
                updates.append((writer, pairs))
            else:
                plain.append((writer, pairs))
                open_reads = open_reads.subtract_domain(pairs.domain())
        return Seen(plain, updates, open_reads.domain())

    # ------------------------------------------------------------------ all stores come first
    def _before(self, frame: InstanceSet, read: isl.Map, writers: list[Statement]) -> Seen | None:
        """The visible stores, if every store of an element precedes its reads.

        The single plain store of an element must also precede its updates. None if this fails.
        """
        plain = [w for w in writers if not w.combiner]
        if not all(self._once(w) for w in plain):
            return None
        seen = Seen([], [], read.domain())
        nothing = read.domain()
        for writer in writers:
            pairs = read.apply_range(writer.write.reverse())
            if not self._earlier(writer.frame, frame, pairs.reverse()):
                return None
            if writer.combiner:
                seen.updates.append((writer, pairs))
            elif not pairs.is_empty():
                if not pairs.domain().is_subset(nothing):
                    return None  # several plain stores of one element
                nothing = nothing.subtract(pairs.domain())
                seen.plain.append((writer, pairs))
        for first, (later, _) in itertools.product(plain, seen.updates):
            pairs = first.write.apply_range(later.write.reverse())
            if not self._earlier(first.frame, later.frame, pairs):
                return None
        updates = [(w, pairs) for w, pairs in seen.updates if not pairs.is_empty()]
        return Seen(seen.plain, updates, nothing)

    def _earlier(self, first: InstanceSet, second: InstanceSet, pairs: isl.Map) -> bool:
        """Whether the first instance runs before the second in every pair."""
        at = part(first.path, second.path)
        if at is None:
            return False
        a, b = first.path[: at + 1], second.path[: at + 1]
        late = first.time(a).lex_ge_map(second.time(b))
        return late.is_disjoint(pairs)

    # ------------------------------------------------------------------ isl's dataflow analysis
    def _analysed(self, frame: InstanceSet, read: isl.Map, writers: list[Statement]) -> Seen:
        """Ask isl's dataflow analysis, repeatedly for reads that its answer omits.

        If stores to one element are distinguished by remainders, isl sometimes omits instances:
        they appear neither with a last store nor among those without one. A query for the omitted
        instances alone succeeds. Each answer is sound for its own query, so the result does not
        depend on what isl omitted.
        """
        seen = self._asked(frame, read, writers)
        while seen.plain and not seen.nothing.is_empty():
            open_reads = read.intersect_domain(seen.nothing)
            more = self._asked(frame, open_reads, writers)
            if not more.plain:
                break
            answered = read.domain().subtract(seen.nothing)
            updates = [(w, pairs.intersect_domain(answered)) for w, pairs in seen.updates]
            seen = Seen(
                _together(seen.plain, more.plain), _together(updates, more.updates), more.nothing
            )
        return seen

    def _asked(self, frame: InstanceSet, read: isl.Map, writers: list[Statement]) -> Seen:
        begin_step(f"which store of {writers[0].buffer.name} comes last")
        paths = [frame.path, *(w.frame.path for w in writers)]
        steps = _deciding(paths)
        plain = [w for w in writers if not w.combiner]
        updates = [w for w in writers if w.combiner]
        if not all(self._told_apart(w, steps) for w in plain):
            steps = max(map(len, paths))
        info = isl.UnionAccessInfo.from_sink(read.to_union_map())
        if plain:
            info = info.set_must_source(_union([w.write for w in plain]))
        if updates:
            info = info.set_may_source(_union([w.write for w in updates]))
        frames = {f.name: f for f in (frame, *(w.frame for w in writers))}
        when = _union([f.time(_padded(f.path, steps)) for f in frames.values()])
        flow = info.set_schedule_map(when).compute_flow()
        result = flow.get_may_dependence().reverse()
        begin_step(f"the last stores of {writers[0].buffer.name}")
        seen = Seen([], [], read.domain())
        covered = isl.Set.empty(read.domain().get_space())
        for one in result.maps():
            pairs = one.coalesce()
            writer = self.by_name[pairs.target()]
            if writer.combiner:
                seen.updates.append((writer, pairs))
                continue
            if not pairs.is_single_valued() or not covered.is_disjoint(pairs.domain()):
                raise Unknown(f"which store of {writer.buffer.name} is the last one")
            covered = covered.union(pairs.domain())
            seen.plain.append((writer, pairs))
        return Seen(seen.plain, seen.updates, seen.nothing.subtract(covered))

    def _told_apart(self, writer: Statement, steps: int) -> bool:
        """Whether the timestamp prefix distinguishes a statement's stores to one element."""
        if self._once(writer):
            return True
        when = writer.frame.time(_padded(writer.frame.path, steps))
        return writer.write.range_product(when).is_injective()


def _together(
    a: list[tuple[Statement, isl.Map]], b: list[tuple[Statement, isl.Map]]
) -> list[tuple[Statement, isl.Map]]:
    """Merge the visible stores of two sets of reader instances."""
    result: dict[Statement, isl.Map] = {}
    for writer, pairs in (*a, *b):
        result[writer] = result[writer].union(pairs) if writer in result else pairs
    return [(writer, pairs) for writer, pairs in result.items() if not pairs.is_empty()]


def _position(statement: Statement) -> tuple[int, ...]:
    """The positions without loops: a sort key for statements that loops do not order."""
    return tuple(s for s in statement.frame.path if isinstance(s, int))


def _before(a: tuple[Step, ...], b: tuple[Step, ...], at: int) -> bool:
    x, y = a[at], b[at]
    assert isinstance(x, int)
    assert isinstance(y, int)
    return x < y


def _deciding(paths: list[tuple[Step, ...]]) -> int:
    """The number of path steps that decide the order of all pairs of statements."""
    needed = 0
    for a, b in itertools.combinations(paths, 2):
        at = part(a, b)
        needed = max(needed, max(len(a), len(b)) if at is None else at + 1)
    return needed


def _padded(path: tuple[Step, ...], count: int) -> tuple[Step, ...]:
    return (*path[:count], *(0 for _ in range(count - len(path))))


def _union(parts: list[isl.Map]) -> isl.UnionMap:
    return reduce(lambda a, b: a.union(b), [m.to_union_map() for m in parts])
