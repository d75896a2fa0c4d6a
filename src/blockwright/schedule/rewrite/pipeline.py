"""Software pipelining of a loop: generate prologue, steady-state loop and epilogue.

At time `t` statement `k` runs iteration `t - stage[k]`, if it exists. With `n` iterations and depth
`D`, times 0 to D - 1 form the prologue, times D to n - 1 the steady-state loop, and times n to
n + D - 1 the epilogue. If `n` may be less than `D`, statements of the prologue are guarded by
"the iteration exists", and statements of the epilogue by `t >= D`, as the prologue covers earlier
times.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.fresh_copy import copied
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import with_own_buffers
from blockwright.schedule.legality.guards import guarded
from blockwright.schedule.legality.reduction import require_initial_values
from blockwright.schedule.rewrite.copy_nest import fresh_name
from blockwright.schedule.rewrite.loops import moved
from blockwright.schedule.rewrite.multi_buffering import UseVersions, versioned
from blockwright.schedule.rewrite.pipeline_stages import PipelinePlan


def pipelined(state: StepState, plan: PipelinePlan) -> StepResult:
    """Pipeline a loop as planned."""
    edit = Edit(state)
    scope = state.scope(plan.loop)
    versions = versioned(state, plan.loop, plan.versions)
    use = UseVersions(state, plan.loop, versions, edit.forward)
    parts = [use(part) for part in plan.parts]
    nest = _Emit(state, edit, plan, parts).nest()
    buffers = [v.buffer for v in versions.values()]
    replaced = list(versions)
    around = state.tree.loops_above(plan.loop)
    if versions and around:
        replaced = plan.private
        buffers += [b for b in replaced if b not in versions]
        nest = _own_block(state, edit, plan.loop, around, nest, buffers)
    else:
        edit.allocate(scope, *buffers)
    edit.free(scope, *replaced)
    edit.replace(plan.loop, nest)
    edit.refresh_signatures()
    return with_own_buffers(state, plan.loop, edit.finish())


class _Emit:
    """Emits the statements of a pipeline: prologue, steady-state loop, epilogue."""

    def __init__(
        self, state: StepState, edit: Edit, plan: PipelinePlan, parts: list[ir.Stmt]
    ) -> None:
        self.state, self.edit, self.plan, self.parts = state, edit, plan, parts
        self.loop = plan.loop
        self.depth = plan.depth
        self.analyzer = state.loop_facts(plan.loop)
        self.names: set[str] = set()
        self.placed: set[ir.Block] = set()

    def nest(self) -> ir.Stmt:
        """The sequence of prologue, steady-state loop and epilogue."""
        extent, depth = self.loop.extent, self._number(self.depth)
        steady = self._steady(extent, depth)
        before = [self._at(self._number(t), "prologue") for t in range(self.depth)]
        after = [self._at(ir.add(extent, t), "epilogue") for t in range(self.depth)]
        parts = [p for group in before for p in group]
        parts += [] if steady is None else [steady]
        parts += [p for group in after for p in group]
        if not parts:
            self.state.fail(
                f"loop {self.loop.loop_var.name} has no iterations",
                code="BW349",
                guilty=[self.loop],
                help="there is nothing to pipeline: leave the loop unchanged",
            )
        return ir.seq(parts)

    def _number(self, value: int) -> ir.Expr:
        return ir.const(value, self.loop.extent.dtype)

    # ------------------------------------------------------------------ the loop
    def _steady(self, extent: ir.Expr, depth: ir.Expr) -> ir.Stmt | None:
        """The steady-state loop, in which all stages are active; None if it never runs."""
        count = ir.const_int(extent)
        if self.depth and count is not None and count <= self.depth:
            return None
        rest = ir.sub(extent, depth)
        if not self.analyzer.prove(ir.GE(extent, depth)):
            rest = ir.maximum(rest, self._number(0))
        rest = self.analyzer.simplify(rest)
        inside = self.analyzer.copy()
        inside.bind(self.loop.loop_var, ir.Range(self._number(0), rest))
        time = ir.add(self.loop.loop_var, ir.cast_to(depth, self.loop.loop_var.type))
        body = [self._instance(k, self._iteration(k, time), inside) for k in self.plan.order]
        self.placed.update(b for part in self.parts for b in ir.blocks(part))
        loop = self.loop.replace(body=ir.seq(body), annotations={})
        return loop.replace(min=self._number(0), extent=rest) if self.depth else loop

    def _iteration(self, k: int, time: ir.Expr) -> ir.Expr:
        """The zero-based iteration that a statement runs at a given time."""
        return ir.sub(time, self.plan.stages[k])

    def _instance(self, k: int, iteration: ir.Expr, analyzer: Analyzer) -> ir.Stmt:
        """A statement with the loop variable replaced by the given iteration."""
        if not self.depth:
            return self.parts[k]
        value = ir.cast_to(ir.add(self.loop.min, iteration), self.loop.loop_var.type)
        return moved(self.parts[k], self.loop.loop_var, analyzer.simplify(value), analyzer)

    # ------------------------------------------------------------------ prologue and epilogue
    def _at(self, time: ir.Expr, word: str) -> list[ir.Stmt]:
        """The statements that run at one time outside the steady-state loop."""
        result: list[ir.Stmt] = []
        for k in self.plan.order:
            condition = self._runs(k, time, word)
            if condition is None or self.analyzer.prove(ir.logical_not(condition)):
                continue
            part = self._instance(k, self._iteration(k, time), self.analyzer)
            if not self.analyzer.prove(condition):
                part = guarded(part, condition, self.analyzer)
            result.append(self._copy(part, word))
        return result

    def _runs(self, k: int, time: ir.Expr, word: str) -> ir.Expr | None:
        """The condition for a statement to run at a prologue or epilogue time; None for never."""
        iteration = self.analyzer.simplify(self._iteration(k, time))
        if word == "prologue":
            first = ir.const_int(iteration)
            assert first is not None
            return None if first < 0 else ir.LT(iteration, self.loop.extent)
        late = self.analyzer.prove(ir.GE(iteration, self.loop.extent))
        return None if late else ir.GE(self.analyzer.simplify(time), self._number(self.depth))

    def _copy(self, part: ir.Stmt, word: str) -> ir.Stmt:
        """A copy with fresh definitions and block names.

        Handles of the original block are forwarded to the copy if the block occurs nowhere else.
        """
        new = copied(part)
        names: dict[ir.Block, str] = {}
        pairs = list(zip(ir.blocks(part), ir.blocks(new), strict=True))
        for old, result in pairs:
            names[result] = self._name(f"{old.name}_{word}")
        rename = _Rename(names)
        new = rename(new)
        for old, result in pairs:
            if old not in self.placed:
                self.placed.add(old)
                self.edit.forward[old] = rename(result)
        return new

    def _name(self, base: str) -> str:
        name, number = fresh_name(self.state, base), 1
        while name in self.names:
            name, number = fresh_name(self.state, f"{base}_{number}"), number + 1
        self.names.add(name)
        return name


class _Rename(ir.Mutator):
    """Renames blocks."""

    def __init__(self, names: dict[ir.Block, str]) -> None:
        super().__init__()
        self.names = names

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        return self.descend(node).replace(name=self.names[node])


def _own_block(
    state: StepState,
    edit: Edit,
    loop: ir.For,
    around: list[ir.For],
    nest: ir.Stmt,
    buffers: list[ir.Buffer],
) -> ir.Stmt:
    """Wrap the pipeline in a block that allocates its buffers, private to each execution."""
    require_initial_values(state, loop, around)
    reduced = _reduced(state, loop, around)
    used = [f for f in around if ir.uses_var(nest, f.loop_var)]
    iters: list[ir.IterVar] = []
    mapping: dict[ir.Var, ir.Expr] = {}
    for outer in used:
        var = ir.Var(f"v{outer.loop_var.name}", outer.loop_var.type)
        dom = ir.substitute(outer.dom, mapping)
        kind = ir.IterType.REDUCE if outer in reduced else ir.IterType.SPATIAL
        iters.append(ir.IterVar(var, dom, kind))
        mapping[outer.loop_var] = var
    body = edit.substitute(nest, mapping)
    name = fresh_name(state, f"{loop.loop_var.name}_pipeline")
    block = ir.Block(name, tuple(iters), (), (), body, alloc_buffers=tuple(buffers))
    values = tuple(f.loop_var for f in used)
    block = with_signature(block, state.signature_facts(loop))
    return ir.BlockRealize(values, ir.const(True, "bool"), block)


def _reduced(state: StepState, loop: ir.For, around: list[ir.For]) -> set[ir.For]:
    """The loops around a pipeline that are bound to a reduction iterator inside it."""
    result: set[ir.For] = set()
    for block in state.tree.child_blocks(loop):
        values = state.tree.realize(block).iter_values
        for it, value in zip(block.iter_vars, values, strict=True):
            if it.iter_type is not ir.IterType.SPATIAL:
                result.update(f for f in around if ir.uses_var(value, f.loop_var))
    return result
