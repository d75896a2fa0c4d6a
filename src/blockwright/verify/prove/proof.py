"""The equivalence proof: model both programs, check safety, compare every result."""

from __future__ import annotations

from collections.abc import Mapping

from blockwright import ir
from blockwright.ir.attributes import (
    FP_CONTRACT,
    LOWER_BOUND,
    NNAN,
    NOALIAS,
    NUM_OUTPUTS,
    UPPER_BOUND,
)
from blockwright.support.stack import has_room
from blockwright.verify import isl
from blockwright.verify.affine import affine, condition
from blockwright.verify.budget import Budget, Meter, metered
from blockwright.verify.model.evaluate import Values
from blockwright.verify.model.instance_sets import QuerySpace, min_sizes
from blockwright.verify.model.program import LAST, ProgramModel
from blockwright.verify.normalize.dot_products import with_loops_for_dots
from blockwright.verify.normalize.empty_reductions import with_empty_reductions
from blockwright.verify.normalize.reroll import rolled
from blockwright.verify.normalize.symbolic_products import Names, Pair, forms
from blockwright.verify.normalize.unfuse import unfused
from blockwright.verify.normalize.views import without_views
from blockwright.verify.prove.lemmas import agree
from blockwright.verify.prove.match import require_equal
from blockwright.verify.prove.safety import Safety, require_demands
from blockwright.verify.verdict import Exhausted, Mismatch, Unknown

UNITS = 9_000_000
"""The operation budget of one verdict: a few seconds on present machines."""
LONGEST = 160_000
"""The operation limit of one step; the longest step in a successful proof took 90,000."""

Failure = Mismatch | Unknown


class Claim:
    """The claim that two functions are equivalent; `prove` returns, or raises on failure.

    Attributes:
        symbols: name of each isl parameter → the variable in `before`.
        sizes: those isl parameters that are sizes of buffers.
        in_parts: whether the last attempt used a lemma about an intermediate buffer.
    """

    def __init__(self, before: ir.PrimFunc, after: ir.PrimFunc) -> None:
        self.before, self.after = before, after
        self.symbols: dict[str, ir.Var] = {}
        self.sizes: set[str] = set()
        self.in_parts = False

    def prove(self) -> None:
        """Search for a proof, or raise `Mismatch` or `Unknown`.

        Each proof has its own isl context. A used context has pooled memory and counts fewer
        operations, and no verdict may depend on earlier ones.
        """
        _require_apart(self.before)
        _require_attributes(self.before, self.after)
        self.before, self.after = map(_prepared, (self.before, self.after))
        first, second = self._names()
        least = self._least()
        self.before, self.after = (
            with_empty_reductions(func, {v: least[n] for v, n in names.items() if n in least})
            for func, names in ((self.before, first), (self.after, second))
        )
        failed = self._look(isl.Context(), Budget(UNITS, LONGEST), first, second)
        if failed is not None:
            raise _reason(failed)

    def _look(
        self, context: isl.Context, budget: Budget, first: Names, second: Names
    ) -> list[list[Failure]] | None:
        """Try the forms of the programs in order, each with both dataflow methods.

        Returns: the failures by form and method; None if a proof was found.
        """
        failed: list[list[Failure]] = []
        attempts = forms(self.before, self.after, first, second, self._least())
        while True:
            try:
                pair = next(attempts, None)
            except Unknown as found:
                return [*failed, [found]]
            if pair is None:
                return failed
            if self._proved(context, budget, pair, failed):
                return None

    def _proved(
        self, context: isl.Context, budget: Budget, pair: Pair, failed: list[list[Failure]]
    ) -> bool:
        """Try to prove one form, first with lemmas, then without.

        A proof without lemmas may succeed where one with lemmas fails.
        """
        for lemmas in (True, False):
            failed.append([])
            parts = False
            for ahead in (False, True):
                result = self._attempt(Meter(context, budget), pair, ahead, lemmas)
                if result is None:
                    return True
                parts = parts or self.in_parts
                failed[-1].append(result)
                if isinstance(result, Exhausted) and result.common:
                    return False
            if not parts:
                return False
            if lemmas:
                failed.pop()
        return False

    def _attempt(self, meter: Meter, pair: Pair, ahead: bool, lemmas: bool) -> Failure | None:
        """Attempt a proof with one dataflow method; return the failure, or None on success.

        The returned exception has no traceback, whose frames would keep isl objects alive.
        """
        try:
            with metered(meter):
                self._compare(meter, pair, ahead, lemmas)
        except isl.Error as error:
            return meter.spent() if error.spent else Unknown(f"isl rejected a query: {error}")
        except RecursionError:
            if not has_room():
                raise
            return Unknown("an expression nested too deeply")
        except Exhausted:
            return meter.spent()
        except Mismatch as found:
            return Mismatch(str(found), found.sizes)
        except Unknown as found:
            return Unknown(str(found))
        return None

    def _compare(self, meter: Meter, pair: Pair, ahead: bool, lemmas: bool) -> None:
        self.in_parts = False
        _require_shapes(pair)
        context = meter.context
        parameters = (*self.symbols, *pair.sizes.factors)
        space = QuerySpace(context, parameters, self._known(context, pair))
        values, others = self._values(meter, space, pair, ahead)
        _require_failures(values.program.fails, others.program.fails)
        if lemmas:
            agree(values, others)
            self.in_parts = bool(values.agreed)
        try:
            safety = Safety(values.program, values)
            safety.check()
        except Mismatch as problem:
            raise _of_the_first(problem) from None
        checked = Safety(others.program, others)
        checked.check()
        require_demands(safety, checked)
        for k, both in enumerate(zip(pair.before.buffers, pair.after.buffers, strict=True)):
            sides = list(zip((values, others), both, strict=True))
            if any(b in v.program.written for v, b in sides) and both[0] not in values.agreed:
                frames = [v.program.whole(b, f"O{k}", LAST) for v, b in sides]
                result = [
                    v.read(f, b, f.relation(f.coordinates), f.domain)
                    for (v, b), f in zip(sides, frames, strict=True)
                ]
                require_equal(frames[0].domain, result[0], result[1], both[0].name)

    @staticmethod
    def _values(meter: Meter, space: QuerySpace, pair: Pair, ahead: bool) -> tuple[Values, Values]:
        """Model both programs; this step is the same for both dataflow methods."""
        meter.common = True
        try:
            before = ProgramModel(pair.before, space, "b_", pair.first)
        except Mismatch as problem:
            raise _of_the_first(problem) from None
        after = ProgramModel(pair.after, space, "a_", pair.second)
        meter.common = False
        return Values(before, ahead), Values(after, ahead)

    # ------------------------------------------------------------------ arguments
    def _names(self) -> tuple[Names, Names]:
        """Name symbolic sizes and integer scalars as isl parameters, common to both programs."""
        before, after = self.before, self.after
        if len(before.params) != len(after.params) or len(before.buffers) != len(after.buffers):
            raise Unknown("the programs take different numbers of arguments")
        first: Names = {}
        second: Names = {}

        def bind(mine: ir.Var, other: ir.Var, size: bool) -> None:
            if mine not in first:
                name = f"p{len(self.symbols)}"
                self.symbols[name] = mine
                first[mine] = name
                if size:
                    self.sizes.add(name)
            second.setdefault(other, first[mine])

        handles = {v for v, _ in before.buffer_map}
        values = ir.value_variables(before)  # their arithmetic wraps around, unlike isl's
        for mine, other in zip(before.params, after.params, strict=True):
            if mine.dtype is not other.dtype:
                raise Unknown(f"argument {mine.name} has another type in the program after")
            if mine not in handles and mine not in values and mine.dtype.is_int:
                bind(mine, other, size=False)
        pairs = list(zip(before.buffers, after.buffers, strict=True))
        for a, b in pairs:
            if a.dtype is not b.dtype or a.ndim != b.ndim:
                raise Unknown(f"argument {a.name} has another type or rank in the program after")
            for m, n in zip(a.shape, b.shape, strict=True):
                if isinstance(m, ir.Var) and isinstance(n, ir.Var):
                    bind(m, n, size=True)
        return first, second

    def _least(self) -> dict[str, int]:
        """The smallest value of each size."""
        low, _ = _bounds(self.before)
        return {name: max(1, low.get(self.symbols[name].name, 1)) for name in self.sizes}

    def _known(self, context: isl.Context, pair: Pair) -> isl.Set:
        """Constraints on sizes: at least 1, within declared bounds, and as asserted."""
        bounds = _bounds_of(pair.before, pair.first)
        if bounds != _bounds_of(pair.after, pair.second):
            raise Unknown("the programs declare different bounds of sizes")
        facts = [f"{name} >= 1" for name in sorted(self.sizes)]
        facts += sorted(bounds)
        for name, factors in pair.sizes.factors.items():
            facts += [f"{name} >= {factor}" for factor in factors if set(factors) <= self.sizes]
        mine, other = _asserted(pair.before, pair.first), _asserted(pair.after, pair.second)
        if mine != other:
            raise Unknown("the programs have different assertions on sizes")
        facts += sorted(mine)
        names = ", ".join([*self.symbols, *pair.sizes.factors])
        text = f"[{names}] -> {{ : {' and '.join(facts) or '0 = 0'} }}"
        return isl.Set(text, context)


def _prepared(func: ir.PrimFunc) -> ir.PrimFunc:
    """Normalize a program: no aliases, stores and dot products in loops, fused loops split."""
    func = without_views(func)
    return func.replace(body=unfused(with_loops_for_dots(rolled(func.body))))


def _require_apart(before: ir.PrimFunc) -> None:
    """Reject programs whose parameters may alias."""
    if before.attrs.get(NOALIAS, True) is False and len(before.buffers) > 1:
        raise Unknown('the arguments may overlap: the program before has "tir.noalias": False')


def _require_attributes(before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    """Check that `after` computes floats at least as strictly and has the same results."""
    strict = before.attrs.get(FP_CONTRACT) == "off" and after.attrs.get(FP_CONTRACT) != "off"
    if strict and any(isinstance(n, ir.Mul) and n.dtype.is_float for n in ir.walk(after.body)):
        raise Unknown(f'the program before forbids contraction ("{FP_CONTRACT}": "off")')
    if after.attrs.get(NNAN, False) and not before.attrs.get(NNAN, False):
        raise Unknown(f'the program after assumes that no value is NaN ("{NNAN}")')
    if before.attrs.get(NUM_OUTPUTS) != after.attrs.get(NUM_OUTPUTS):
        raise Unknown(f'the programs have different results ("{NUM_OUTPUTS}")')


def _of_the_first(problem: Mismatch) -> Unknown:
    """Convert a mismatch within `before` to Unknown: it does not show that `after` is wrong."""
    return Unknown(f"the program before: {problem}")


def _reason(failed: list[list[Failure]]) -> Failure:
    """The failure to report: the first mismatch, else the reasons of all forms.

    For each form, a mismatch is preferred to an unknown, and both to an exhausted budget.
    """
    best = [
        min(roads, key=lambda f: (isinstance(f, Unknown), isinstance(f, Exhausted)))
        for roads in failed
    ]
    for one in best:
        if isinstance(one, Mismatch):
            return one
    return Unknown("; in another form: ".join(dict.fromkeys(map(str, best))))


def _require_shapes(pair: Pair) -> None:
    """Check that buffer parameters have the same shapes, strides and scopes."""
    for a, b in zip(pair.before.buffers, pair.after.buffers, strict=True):
        for m, n in zip(a.shape, b.shape, strict=True):
            x, y = affine(m, pair.first), affine(n, pair.second)
            if x is None or x != y:
                raise Unknown(
                    f"argument {a.name} has another or a nonlinear shape in the program after"
                )
        if a.scope != b.scope or not _same_layout(a, b, pair):
            raise Unknown(f"argument {a.name} has another layout in the program after")


def _same_layout(a: ir.Buffer, b: ir.Buffer, pair: Pair) -> bool:
    """Whether two parameters declare the same strides; variables stand for any."""
    if len(a.strides) != len(b.strides):
        return False
    for x, y in zip(a.strides, b.strides, strict=True):
        free = isinstance(x, ir.Var) and isinstance(y, ir.Var)
        if free and x not in pair.first and y not in pair.second:
            continue
        text = affine(x, pair.first)
        if text is None or text != affine(y, pair.second):
            return ir.structural_equal(a.strides, b.strides)
    return True


def _require_failures(before: isl.Set, after: isl.Set) -> None:
    """Check that assertions of both programs fail for the same sizes."""
    what = "an assertion fails only in the program"
    for name, extra in (("after", after.subtract(before)), ("before", before.subtract(after))):
        if not extra.is_empty():
            raise Mismatch(f"{what} {name}", min_sizes(extra))


def _bounds(func: ir.PrimFunc) -> tuple[Mapping[str, int], Mapping[str, int]]:
    low: Mapping[str, int] = func.attrs.get(LOWER_BOUND, {})
    high: Mapping[str, int] = func.attrs.get(UPPER_BOUND, {})
    return low, high


def _bounds_of(func: ir.PrimFunc, names: Names) -> set[str]:
    """The declared bounds of sizes and scalars, in isl's notation."""
    low, high = _bounds(func)
    own = [(v.name, name) for v, name in names.items()]
    return {
        f"{name} {sign} {bounds[variable]}"
        for sign, bounds in ((">=", low), ("<=", high))
        for variable, name in own
        if variable in bounds
    }


def _asserted(func: ir.PrimFunc, names: Names) -> set[str]:
    """The assertions at the start of a program, in isl's notation."""
    stmt = func.body.block.body if isinstance(func.body, ir.BlockRealize) else func.body
    head = stmt.seq if isinstance(stmt, ir.SeqStmt) else (stmt,)
    result: set[str] = set()
    for one in head:
        if not isinstance(one, ir.AssertStmt):
            break
        text = condition(one.condition, names)
        if text is None:
            raise Unknown(f"the assertion of {one.condition!r} is not a condition on sizes")
        result.add(text)
    return result
