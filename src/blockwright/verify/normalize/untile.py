"""Join loops that were split by a symbolic size.

    for h in range((n + t - 1) // t):
        for l in range(t):              →       for f in range(n):
            if h * t + l < n:                       A[f] = …
                A[h * t + l] = …

Three steps, all of which preserve the executed instances and their order:

*lean*: drop a condition that always holds or is implied by another one. A comparison with a
quotient is replaced by one without: `q <= e // b` by `q * b <= e`, for `b > 0`.

*narrow*: drop the iterations of a loop in which all work is under a condition that fails.

*join*: merge a loop with a perfectly nested loop of `t` iterations if they are only used as
`h * t + l`. For `0 <= l < t` that sum runs through `0, 1, … count * t - 1` in order.

Loops that do not have this form are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockwright import ir
from blockwright.verify.model.privatization import MOVED
from blockwright.verify.normalize.quotients import (
    INDEX,
    MOST_TERMS,
    Quotients,
    Simplify,
    hard_parts,
    index_roots,
)
from blockwright.verify.polynomial import Indeterminate, Polynomial, number

Digits = tuple[ir.Var, ir.Var]
"""The loops over the higher and the lower digit of a loop that was split."""


class Tiles:
    """One bottom-up pass over a program.

    Args:
        minimum: size → its smallest value.
        digits: pairs of loops that resulted from splitting; they are not joined again.
        narrow: drop empty iterations if true, join loops if false.
    """

    def __init__(
        self, minimum: Mapping[ir.Var, int], digits: set[Digits], narrow: bool = False
    ) -> None:
        self.digits, self.narrow = digits, narrow
        self.known = Quotients(minimum)

    def stmt(self, stmt: ir.Stmt) -> Any:
        match stmt:
            case ir.For():
                return self._loop(stmt)
            case ir.BlockRealize():
                return self._block(stmt)
            case ir.IfThenElse() if stmt.else_case is None:
                test = self._lean(stmt.condition)
                return stmt.replace(condition=test, then_case=self.stmt(stmt.then_case))
            case _:
                return stmt.map_children(lambda c: self.stmt(c) if isinstance(c, ir.Stmt) else c)

    def _block(self, node: ir.BlockRealize) -> ir.Stmt:
        predicate = self._lean(node.predicate)
        for it, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            if ir.is_const_int(it.dom.min, 0):
                bound = self.known.poly(value).atom
                smallest = None if bound is None else self.known.extent(bound)
                extent = self.known.poly(it.dom.extent) if smallest is None else smallest
                self.known.bound(it.var, extent)
        init = None if node.block.init is None else self.stmt(node.block.init)
        block = node.block.replace(init=init, body=self.stmt(node.block.body))
        return ir.BlockRealize(node.iter_values, predicate, block)

    # ------------------------------------------------------------------ loops
    def _loop(self, node: ir.For) -> ir.Stmt:
        if not ir.is_const_int(node.min, 0):
            return node.replace(body=self.stmt(node.body))
        hard = bool(hard_parts(node.body))
        extent = self.known.poly(node.extent)
        if hard and extent.value == 1 and _is_plain(node):
            return self.stmt(ir.substitute(node.body, {node.loop_var: node.min}))
        self.known.bound(node.loop_var, extent)
        created = node.replace(body=self.stmt(node.body))
        while hard or hard_parts(created.extent):
            result = self._narrowed(created) if self.narrow else self._joined(created)
            if result is None:
                return created
            self.known.bound(result.loop_var, self.known.poly(result.extent))
            created = result.replace(body=self._leaner(result.body))
        return created

    def _narrowed(self, node: ir.For) -> ir.For | None:
        """Drop the loop iterations that a condition on the loop variable leaves empty.

        `rest - factor * f >= 1`, with `factor >= 0` and `factor * limit >= rest`, implies
        `f < limit`: for `f >= limit` the left side is at most 0.
        """
        if node.thread is not None:
            return None
        atom, extent = self.known.of_variable(node.loop_var), self.known.poly(node.extent)
        for positive in self._all_conditions(node.body):
            factor, rest = positive.parted(atom)
            factor = number(0) - factor
            sizes = Polynomial(
                {p: c for p, c in rest.terms.items() if all(a.kind == "size" for a in p)}
            )
            for limit in _limits(factor, sizes):
                if limit != extent and self._fits(node, atom, extent, limit, factor):
                    return node.replace(extent=self.known.expression(limit))
        return None

    def _fits(
        self,
        node: ir.For,
        atom: Indeterminate,
        extent: Polynomial,
        limit: Polynomial,
        factor: Polynomial | None = None,
    ) -> bool:
        """Whether a loop is empty from iteration `limit` on, with `limit` at most its extent.

        For a number `k > 0`, an integer `d` is at least 0 if `k * d + k - 1` is.
        """
        times = None if factor is None else factor.value
        k = number(times) if times is not None and times > 0 else number(1)
        reached = self.known.never_negative((extent - limit) * k + k - number(1))
        return reached and self._guarded(node.body, atom, limit)

    def _joined(self, outer: ir.For) -> ir.For | None:
        """Join two nested loops whose variables are only used as `outer * base + inner`.

        The inner loop has `base` iterations or is empty from iteration `base` on.
        """
        inner = outer.body
        if not (isinstance(inner, ir.For) and ir.is_const_int(inner.min, 0)):
            return None
        pair = outer.loop_var, inner.loop_var
        if any(f.thread is not None for f in (outer, inner)) or pair in self.digits:
            return None
        high, low = (self.known.of_variable(f.loop_var) for f in (outer, inner))
        count, extent = (self.known.poly(f.extent) for f in (outer, inner))
        every = bool(hard_parts(outer.extent) or hard_parts(inner.extent))
        base = self._base(high, low, extent, index_roots(inner.body, every))
        if base is None or ir.uses_var(inner.extent, outer.loop_var):
            return None
        body = inner.body
        if base != extent:
            if not self._fits(inner, low, extent, base):
                return None
            self.known.bound(inner.loop_var, base)
            body = self._leaner(body)
        var = ir.Var(f"{outer.loop_var.name}_{inner.loop_var.name}", INDEX)
        whole = count * base
        if len(whole.terms) > MOST_TERMS:
            return None
        self.known.bound(var, whole)
        rest = ir.Sub(var, ir.Mul(outer.loop_var, self.known.expression(base)))
        body = Simplify(self.known, every=True)(ir.substitute(body, {inner.loop_var: rest}))
        if ir.uses_var(body, outer.loop_var):
            self.known.bound(inner.loop_var, extent)
            return None
        kind = outer.kind if outer.kind is not ir.ForKind.SERIAL else inner.kind
        kind = ir.ForKind.SERIAL if kind is ir.ForKind.UNROLLED else kind
        marks = {MOVED: True} if MOVED in {**outer.annotations, **inner.annotations} else {}
        return ir.For(var, outer.min, self.known.expression(whole), kind, body, annotations=marks)

    def _base(
        self, high: Indeterminate, low: Indeterminate, extent: Polynomial, roots: list[ir.Expr]
    ) -> Polynomial | None:
        """The `base` in some `high * base + low`; preferably the inner extent."""
        result: list[Polynomial] = []
        for root in roots:
            divides = isinstance(root, (ir.FloorDiv, ir.FloorMod))
            for poly in (self.known.poly(p) for p in ((root, root.a) if divides else (root,))):
                if high in poly.atoms() and low in poly.atoms():
                    base = poly.parted(high)[0].over(poly.parted(low)[0])
                    result += [] if base is None else [base]
        return extent if extent in result else result[0] if result else None

    # ------------------------------------------------------------------ conditions
    def _positive(self, test: ir.Expr) -> Polynomial | None:
        """A polynomial without quotients that is positive exactly if an index comparison holds."""
        if not isinstance(test, (ir.LT, ir.LE, ir.GT, ir.GE)) or not test.a.dtype.is_index:
            return None
        low, high = self.known.poly(test.a), self.known.poly(test.b)
        if isinstance(test, (ir.GT, ir.GE)):
            low, high = high, low
        strict = isinstance(test, (ir.LT, ir.GT))
        return self.known.cleared(high - low + number(0 if strict else 1))

    def _implies(self, one: Polynomial, other: Polynomial) -> bool:
        """Whether `other` is positive wherever `one` is."""
        return self.known.never_negative(other - one)

    def _lean(self, condition: ir.Expr) -> ir.Expr:
        """Drop the parts of a condition that are implied."""
        tests = ir.conditions(condition)
        result = [self._positive(test) for test in tests]
        kept: list[int] = []
        for k, one in enumerate(result):
            if one is None or not self.known.never_negative(one - number(1)):
                kept.append(k)
        for k in tuple(kept):
            one = result[k]
            others = [result[j] for j in kept if j != k]
            if one is not None and any(o is not None and self._implies(o, one) for o in others):
                kept.remove(k)
        return condition if len(kept) == len(tests) else ir.all_of(tests[k] for k in kept)

    def _leaner(self, stmt: Any) -> Any:
        """Remove conditions of a statement that the known ranges imply."""
        match stmt:
            case ir.BlockRealize():
                node = stmt.map_children(
                    lambda c: self._leaner(c) if isinstance(c, ir.Block) else c
                )
                return node.replace(predicate=self._lean(node.predicate))
            case ir.IfThenElse() if stmt.else_case is None:
                return stmt.replace(
                    condition=self._lean(stmt.condition), then_case=self._leaner(stmt.then_case)
                )
            case ir.Block() | ir.Stmt():
                return stmt.map_children(lambda c: self._leaner(c) if isinstance(c, ir.Stmt) else c)
            case _:
                return stmt

    def _all_conditions(self, stmt: ir.Node) -> Iterator[Polynomial]:
        """Polynomials that are positive under the conditions found in a statement."""
        for node in ir.walk(stmt):
            test = (
                node.predicate
                if isinstance(node, ir.BlockRealize)
                else (node.condition if isinstance(node, ir.IfThenElse) else None)
            )
            for one in () if test is None else ir.conditions(test):
                positive = self._positive(one)
                if positive is not None:
                    yield positive

    def _guarded(self, stmt: ir.Stmt, atom: Indeterminate, limit: Polynomial) -> bool:
        """Whether all work of a statement is under conditions that bound a loop by a limit."""
        match stmt:
            case ir.SeqStmt():
                return all(self._guarded(s, atom, limit) for s in stmt.seq)
            case ir.For():
                return self._guarded(stmt.body, atom, limit)
            case ir.BlockRealize():
                init = stmt.block.init
                return self._says(stmt.predicate, atom, limit) or (
                    self._in_domains(stmt)
                    and (init is None or self._guarded(init, atom, limit))
                    and self._guarded(stmt.block.body, atom, limit)
                )
            case ir.IfThenElse():
                return self._says(stmt.condition, atom, limit) and stmt.else_case is None
            case _:
                return False

    def _in_domains(self, node: ir.BlockRealize) -> bool:
        """Whether all iterators stay in their domains, even where nothing is executed."""
        for it, value in zip(node.block.iter_vars, node.iter_values, strict=True):
            at = self.known.poly(value) - self.known.poly(it.dom.min)
            above = self.known.poly(it.dom.extent) - at - number(1)
            if not (self.known.never_negative(at) and self.known.never_negative(above)):
                return False
        return True

    def _says(self, condition: ir.Expr, atom: Indeterminate, limit: Polynomial) -> bool:
        for test in ir.conditions(condition):
            positive = self._positive(test)
            if positive is None:
                continue
            negative, rest = positive.parted(atom)
            factor, never = number(0) - negative, self.known.never_negative
            bounds = bool(factor.terms) and atom not in factor.atoms() and never(factor)
            if bounds and never(factor * limit - rest):
                return True
        return False


def _limits(factor: Polynomial, rest: Polynomial) -> Iterator[Polynomial]:
    """Candidates for the smallest `f` with `rest - factor * f <= 0`."""
    if not factor.terms:
        return
    whole = rest.over(factor)
    by, numerator = factor.value, rest.value
    if whole is not None and all(a.kind == "size" for a in whole.atoms()):
        yield whole
    elif by is not None and by > 0 and numerator is not None:
        yield number(-(-numerator // by))
    yield number(1)


def _is_plain(loop: ir.For) -> bool:
    return loop.kind in (ir.ForKind.SERIAL, ir.ForKind.UNROLLED)
