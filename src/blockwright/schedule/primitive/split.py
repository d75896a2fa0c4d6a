"""split: one loop becomes a nest of loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from blockwright import ir
from blockwright.analysis.facts import symbols_of
from blockwright.arith import Analyzer
from blockwright.arith.text import expr_text
from blockwright.schedule.engine.edit import Edit, wrap_loops
from blockwright.schedule.engine.handle import LoopRV
from blockwright.schedule.engine.record import Factor, Primitive, Returns
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_plain_loop
from blockwright.schedule.legality.guards import guarded, require_lasting
from blockwright.schedule.rewrite.loops import loop_names, simplified_bindings


class Split(Primitive, frozen=True, eq=False):
    """Split a loop into as many loops as there are factors, the first one outermost.

    Args:
        loop: the loop.
        factors: extents of the new loops; one may be None and is then chosen so that the product
            covers the loop. Where the product may exceed the extent, blocks get a predicate, or an
            `if` where theirs, or a bound, divides or loads and could fail there.
        preserve_unit_iters: keep loops that run once.
        disable_predication: leave the predicate out; the product must then provably not exceed
            the extent.
        names: of the new loops; the default numbers them after the loop.

    Requires:
    - the loop is serial and not annotated, and does not write what its bounds are loaded from
      (BW350);
    - at most one factor is None;
    - symbolic factors are sizes of the program, provably positive by their stated range
      (`tir_var_lower_bound`); that one divides an extent is stated by an assertion at the head
      of the program, such as `assert n % t == 0, "t divides n"`;
    - without None, the product covers the extent.

    Before::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i in range(128):
                with T.block("B"):
                    vi = T.axis.spatial(128, i)
                    B[vi] = A[vi] + 1.0

    Steps::

        (i,) = sch.get_loops(sch.get_block("B"))
        sch.split(i, factors=[None, 32])

    After::

        @T.prim_func
        def main(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
            for i_0, i_1 in T.grid(4, 32):
                with T.block("B"):
                    vi = T.axis.spatial(128, i_0 * 32 + i_1)
                    B[vi] = A[vi] + 1.0
    """

    method: ClassVar[str] = "split"
    returns: ClassVar[Returns] = "loops"

    loop: LoopRV
    factors: tuple[Factor, ...]
    preserve_unit_iters: bool = True
    disable_predication: bool = False
    names: tuple[str, ...] | None = None

    def apply(self, state: StepState) -> StepResult:
        loop = state.loop(self.loop)
        require_plain_loop(state, loop)
        require_lasting(state, [loop], [loop])
        analyzer = state.loop_facts(loop)
        runs = analyzer.prove(ir.GT(loop.extent, ir.const(0, loop.extent.dtype)))
        extents = self._extents(state, loop, analyzer)
        dtype = loop.loop_var.type
        total = extents[0]
        for extent in extents[1:]:
            total = total * extent
        exact = analyzer.prove_equal(total, loop.extent)
        if not exact and not self._open():
            short = not analyzer.prove(ir.GE(*ir.match_types(total, loop.extent)))
            if short:
                name = loop.loop_var.name
                outer = ", ".join(["None", *map(_shown, self.factors[1:])])
                state.fail(
                    f"the product of the factors, {_product(self.factors)}, does not "
                    f"provably cover the extent of loop {name}, {expr_text(loop.extent)}",
                    code="BW318",
                    guilty=[loop],
                    help=f"split({name}, [{outer}]) finds the factor that covers it",
                )
        if not exact and self.disable_predication:
            state.fail(
                f"the factors {_product(self.factors)} do not divide loop "
                f"{loop.loop_var.name} of {expr_text(loop.extent)} provably and predication "
                "is disabled",
                code="BW318",
                guilty=[loop],
                help="give factors that divide the extent, or leave "
                "disable_predication out: a predicate then guards the end",
            )
        edit = Edit(state)
        kept = [
            k
            for k, e in enumerate(extents)
            if self.preserve_unit_iters or not analyzer.prove_equal(e, ir.const(1, dtype))
        ]
        names = loop_names(state, loop, self.names, len(extents))
        fresh = {k: ir.Var(names[k], dtype) for k in kept}
        value: ir.Expr = ir.const(0, dtype)
        for k, extent in enumerate(extents):
            value = value * extent if k else value
            value = value + fresh[k] if k in fresh else value
        body = edit.substitute(loop.body, {loop.loop_var: _shifted(value, loop.min)})
        for k, var in fresh.items():
            analyzer.bind(var, ir.Range(ir.const(0, dtype), extents[k]))
        if not exact:
            inside = ir.LT(*ir.match_types(value, loop.extent))
            body = guarded(body, inside, analyzer, set(fresh.values()) if runs else None)
        body = simplified_bindings(body, set(fresh.values()), analyzer)
        nest = wrap_loops(body, [(var, extents[k]) for k, var in fresh.items()])
        edit.replace(loop, nest)
        return edit.finish(*fresh.values())

    def _open(self) -> int:
        """How many factors are left to be found."""
        return sum(factor is None for factor in self.factors)

    def _extents(self, state: StepState, loop: ir.For, analyzer: Analyzer) -> list[ir.Expr]:
        if self._open() > 1:
            state.fail(
                f"more than one factor is None: {_product(self.factors)} = "
                f"{expr_text(loop.extent)} has many solutions",
                code="BW304",
                guilty=[loop],
                help="give numbers for all factors but one, as in [None, 4]",
            )
        if not self.factors:
            state.fail(
                "no factors are given",
                code="BW304",
                guilty=[loop],
                help="give the factors from outer to inner, as in [None, 4]",
            )
        dtype = loop.loop_var.type
        given = [
            None if f is None else self._factor(state, loop, f, analyzer) for f in self.factors
        ]
        product: ir.Expr = ir.const(1, dtype)
        for extent in given:
            product = product if extent is None else product * extent
        size = ir.cast_to(loop.extent, dtype)
        inferred = analyzer.simplify(ir.ceildiv(size, product))
        return [inferred if extent is None else extent for extent in given]

    @staticmethod
    def _factor(
        state: StepState, loop: ir.For, factor: int | ir.Expr, analyzer: Analyzer
    ) -> ir.Expr:
        """A factor in the type of the loop."""
        dtype = loop.loop_var.type
        value = ir.as_expr(factor, None)
        used = ir.free_vars(value)
        known = set(symbols_of(state.func)) if used else set[ir.Var]()
        foreign = [v.name for v in used if v not in known]
        if foreign:
            state.fail(
                f"{foreign[0]} in a factor is no size of the program",
                code="BW304",
                guilty=[loop],
                help="declare it as a scalar parameter",
            )
        if not analyzer.prove(ir.GE(value, ir.const(1, value.dtype))):
            state.fail(
                "a symbolic factor is not provably positive",
                code="BW318",
                guilty=[loop],
                help='state its range in "tir_var_lower_bound"',
            )
        high = analyzer.const_bounds(value)[1]
        if value.dtype.bits > dtype.bits and (high is None or high > dtype.max_value):
            state.fail(
                f"a factor of type {value.dtype} may be too large for loop "
                f"{loop.loop_var.name} of type {dtype}",
                code="BW318",
                guilty=[loop],
                help=f'state its range in "tir_var_upper_bound", or declare it as {dtype}',
            )
        return ir.cast_to(value, dtype)


def _shown(factor: int | ir.Expr | None) -> str:
    return expr_text(factor) if isinstance(factor, ir.Expr) else str(factor)


def _product(factors: Sequence[int | ir.Expr | None]) -> str:
    return " * ".join(map(_shown, factors))


def _shifted(value: ir.Expr, low: ir.Expr) -> ir.Expr:
    return value if ir.is_const_int(low, 0) else low + value
