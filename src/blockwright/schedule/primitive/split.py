"""split: split a loop into a loop nest."""

from __future__ import annotations

import math
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
from blockwright.schedule.legality.reduction import require_empty_sums
from blockwright.schedule.rewrite.loops import loop_names, simplified_bindings


class Split(Primitive, frozen=True, eq=False):
    """Split a loop into one loop per factor, the first factor outermost.

    Args:
        loop: the loop.
        factors: extents of the new loops. One may be None; it is inferred so that the product
            covers the extent. If the product may exceed the extent, the blocks get a predicate. If
            their own predicate or a bound divides or loads and could fail in the padded
            iterations, an `if` guards them instead.
        preserve_unit_iters: keep loops of extent 1.
        disable_predication: emit no predicate; the factors must then provably divide the extent.
        names: names of the new loops; default: the name of the loop with a number appended.

    Requires:
    - the loop is serial and not annotated, and does not write the memory its bounds are loaded
      from (BW350);
    - at most one factor is None;
    - symbolic factors are size symbols of the program, provably positive by their declared range
      (`tir_var_lower_bound`); an assertion at the head of the program declares that a factor
      divides an extent, for example `assert n % t == 0, "t divides n"`;
    - if no factor is None, the product covers the extent;
    - if no factor is None and the loop is a reduction loop that may be empty, a new loop has more
      than one iteration and the blocks need no `if`; otherwise an empty reduction would lose its
      initial value (BW365).

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
        known = [n for e in extents if (n := ir.const_int(e)) is not None]
        if math.prod(known) >= 1 << 63:
            state.fail(
                f"the product of the factors, {_product(self.factors)}, exceeds 63 bits",
                code="BW318",
                guilty=[loop],
                help=f"use factors that cover the extent {expr_text(loop.extent)} and no more",
            )
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
                    help=f"split({name}, [{outer}]) infers the outer factor",
                )
        if not exact and self.disable_predication:
            state.fail(
                f"the factors {_product(self.factors)} do not provably divide the extent of loop "
                f"{loop.loop_var.name}, {expr_text(loop.extent)}, and predication is disabled",
                code="BW318",
                guilty=[loop],
                help="use factors that divide the extent, or omit "
                "disable_predication: a predicate then guards the tail",
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
        if not (exact or runs or self._open()):
            require_empty_sums(state, loop, body, set(fresh.values()))
        nest = wrap_loops(body, [(var, extents[k]) for k, var in fresh.items()])
        edit.replace(loop, nest)
        return edit.finish(*fresh.values())

    def _open(self) -> int:
        """Return the number of factors to infer."""
        return sum(factor is None for factor in self.factors)

    def _extents(self, state: StepState, loop: ir.For, analyzer: Analyzer) -> list[ir.Expr]:
        if self._open() > 1:
            state.fail(
                f"more than one factor is None: {_product(self.factors)} = "
                f"{expr_text(loop.extent)} has many solutions",
                code="BW304",
                guilty=[loop],
                help="pass numbers for all factors but one, for example [None, 4]",
            )
        if not self.factors:
            state.fail(
                "no factors are given",
                code="BW304",
                guilty=[loop],
                help="pass the factors from outer to inner, for example [None, 4]",
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
        """Return a factor, cast to the type of the loop variable."""
        dtype = loop.loop_var.type
        value = ir.as_expr(factor, None)
        used = ir.free_vars(value)
        known = set(symbols_of(state.func)) if used else set[ir.Var]()
        foreign = [v.name for v in used if v not in known]
        if foreign:
            state.fail(
                f"{foreign[0]} in a factor is not a size symbol of the program",
                code="BW304",
                guilty=[loop],
                help="declare it as a scalar parameter",
            )
        if not analyzer.prove(ir.GE(value, ir.const(1, value.dtype))):
            state.fail(
                "a symbolic factor is not provably positive",
                code="BW318",
                guilty=[loop],
                help='declare its lower bound in "tir_var_lower_bound"',
            )
        high = analyzer.const_bounds(value)[1]
        if value.dtype.bits > dtype.bits and (high is None or high > dtype.max_value):
            state.fail(
                f"a factor of type {value.dtype} may be too large for loop "
                f"{loop.loop_var.name} of type {dtype}",
                code="BW318",
                guilty=[loop],
                help=f'declare its upper bound in "tir_var_upper_bound", or use type {dtype}',
            )
        return ir.cast_to(value, dtype)


def _shown(factor: int | ir.Expr | None) -> str:
    return expr_text(factor) if isinstance(factor, ir.Expr) else str(factor)


def _product(factors: Sequence[int | ir.Expr | None]) -> str:
    return " * ".join(map(_shown, factors))


def _shifted(value: ir.Expr, low: ir.Expr) -> ir.Expr:
    return value if ir.is_const_int(low, 0) else low + value
