"""Pad a contraction (`pad_einsum`): padded operand copies, padded block, copy of the result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blockwright import ir
from blockwright.analysis.sizes import nonnegative
from blockwright.arith import Analyzer, eval_set
from blockwright.schedule.engine.edit import Edit
from blockwright.schedule.engine.forwarding import with_signature
from blockwright.schedule.engine.state import StepResult, StepState
from blockwright.schedule.legality.checks import require_filled
from blockwright.schedule.legality.own_loops import nest_of
from blockwright.schedule.rewrite.copy_nest import copy_nest, fresh_name
from blockwright.schedule.rewrite.loops import resized


def own_parts(index: ir.Node) -> Iterator[ir.Node]:
    """Yield every occurrence of a node in an index, not descending into loads."""
    if not isinstance(index, ir.BufferLoad):
        yield index
        for child in index.children():
            yield from own_parts(child)


def occurrences(root: ir.Node) -> Iterator[ir.Node]:
    """Yield a node and every occurrence of a node below it, not descending into buffers."""
    yield root
    for child in root.children():
        if not isinstance(child, ir.Buffer):
            yield from occurrences(child)


def accesses_in(root: ir.Node) -> Iterator[ir.BufferLoad | ir.BufferStore]:
    """Yield every occurrence of a load or store below a node."""
    for node in occurrences(root):
        if isinstance(node, (ir.BufferLoad, ir.BufferStore)):
            yield node


class EinsumPadding:
    """Builds the padded copies of operands, the padded block and the copy of the result."""

    def __init__(
        self,
        state: StepState,
        block: ir.Block,
        loops: list[ir.For],
        padded: dict[ir.Var, tuple[ir.Expr, ir.Expr]],
        mode: str,
        analyzer: Analyzer,
    ) -> None:
        self.state, self.block, self.loops = state, block, loops
        self.padded, self.mode, self.analyzer = padded, mode, analyzer
        self.reduced: set[ir.Expr] = {
            it.var
            for it in block.iter_vars
            if it.var in padded and it.iter_type is not ir.IterType.SPATIAL
        }
        self.scope = state.scope(block)
        self.edit = Edit(state)
        self.buffers: dict[ir.Buffer, ir.Buffer] = {}
        self.made: list[ir.Block] = []

    def step(self) -> StepResult:
        state, block = self.state, self.block
        output = block.writes[0].buffer
        self._check_filled(output)
        outer = nest_of(state, block, self.loops)
        for region in (*block.reads, *block.writes):
            require_filled(state, self.scope, region.buffer)
        for region in block.reads:
            if region.buffer is not output:
                self._operand(region.buffer, outer)
        back = self._result(output)
        new = self._padded_block()
        self.edit.forward[block] = new
        nest: ir.Stmt = self.state.realize(block).replace(block=new)
        variables = {loop.loop_var: loop for loop in self.loops}
        value_of = dict(zip((it.var for it in block.iter_vars), self.loops, strict=True))
        extent = {value_of[v].loop_var: e for v, (_, e) in self.padded.items()}
        for loop in sorted(variables.values(), key=lambda n: -state.tree.order[n]):
            size = extent.get(loop.loop_var, loop.extent)
            nest = resized(loop, loop.min, size, nest)
        self.edit.replace(nest_of(state, block, self.loops), nest)
        if back is not None:
            self.edit.insert_after(outer, back)
        self.edit.refresh_signatures()
        return self.edit.finish(*self.made)

    def _positions(self, buffer: ir.Buffer) -> list[tuple[ir.Expr, ir.Expr] | None]:
        """Per dimension of a buffer: (original extent, padded extent), or None if it stays."""
        parts = (self.block.body, self.block.init)
        accesses = [
            a for part in parts if part is not None for a in accesses_in(part) if a.buffer is buffer
        ]
        sizes: list[tuple[ir.Expr, ir.Expr] | None] = []
        for dim, size in enumerate(buffer.shape):
            indices = [access.indices[dim] for access in accesses]
            moving = [v for i in indices for v in own_parts(i) if v in self.padded]
            if not moving:
                sizes.append(None)
            elif any(i in self.reduced for i in indices):
                sizes.append(self._terms(buffer, indices))
            else:
                sizes.append(self._reach(buffer, indices, size))
        return sizes

    def _terms(self, buffer: ir.Buffer, indices: list[ir.Expr]) -> tuple[ir.Expr, ir.Expr]:
        """The (original, padded) extents of a dimension indexed only by a padded reduction
        iterator."""
        result = [self.padded.get(i) if isinstance(i, ir.Var) else None for i in indices]
        first = result[0]
        for other in result:
            same = (
                first is not None
                and other is not None
                and all(
                    self.analyzer.prove_equal(*ir.match_types(x, y))
                    for x, y in zip(first, other, strict=True)
                )
            )
            if not same:
                self.state.fail(
                    f"{buffer.name} is indexed by a padded reduction iterator and by "
                    "another expression in one dimension",
                    code="BW326",
                    guilty=[self.block],
                    help=f"read the two from separate buffers: copy "
                    f"{buffer.name} in a block before it",
                )
        assert first is not None
        return first

    def _reach(
        self, buffer: ir.Buffer, indices: list[ir.Expr], size: ir.Expr
    ) -> tuple[ir.Expr, ir.Expr] | None:
        """The size of a dimension and the size that indices need on the padded domain.

        None if the present size suffices.
        """
        domains = {
            it.var: it.dom
            if it.var not in self.padded
            else ir.Range(it.dom.min, self.padded[it.var][1])
            for it in self.block.iter_vars
        }
        end = size
        for index in indices:
            own = {v: dom for v, dom in domains.items() if ir.uses_var(index, v)}
            span = eval_set(index, own, self.analyzer)
            low, high = span.min, span.max
            if (
                low is None
                or high is None
                or not self.analyzer.prove(ir.GE(*ir.match_types(low, 0)))
            ):
                self.state.fail(
                    f"an index of {buffer.name} becomes negative on padded points, or "
                    "has no known upper bound there",
                    code="BW326",
                    guilty=[index, self.block],
                    help=f'reindex("{self.block.name}", "{buffer.name}") first: the result '
                    "has one index per iterator",
                )
            need = self.analyzer.simplify(ir.cast_to(high, size.dtype) + 1)
            if self.analyzer.prove(ir.LE(*ir.match_types(need, end))):
                continue
            larger = self.analyzer.prove(ir.GE(*ir.match_types(need, end)))
            end = need if larger else ir.maximum(end, need)
        return None if end is size else (size, end)

    def _check_filled(self, output: ir.Buffer) -> None:
        """Require that the block writes its whole output, with one iterator per dimension."""
        store = self.block.body
        assert isinstance(store, ir.BufferStore)
        extents = {it.var: it.dom.extent for it in self.block.iter_vars}
        seen: set[ir.Expr] = set()
        for index, size in zip(store.indices, output.shape, strict=True):
            if ir.is_const_int(size, 1) and ir.is_const_int(index, 0):
                continue
            extent = extents.get(index) if isinstance(index, ir.Var) else None
            whole = extent is not None and index not in seen
            if not whole or not self.analyzer.prove_equal(*ir.match_types(extent, size)):
                self.state.fail(
                    f"{self.block.name} does not fill {output.name} with one iterator "
                    "per dimension",
                    code="BW326",
                    guilty=[self.block],
                    help=f'reindex("{self.block.name}", "{output.name}") first: the result '
                    "has one index per iterator",
                )
            seen.add(index)

    def _grown(self, buffer: ir.Buffer, sizes: list[tuple[ir.Expr, ir.Expr] | None]) -> ir.Buffer:
        known = self.state.analyzer(self.scope.body)
        shape = tuple(
            d if size is None else nonnegative(size[1], known)
            for d, size in zip(buffer.shape, sizes, strict=True)
        )
        name = fresh_name(self.state, f"{buffer.name}_pad")
        fresh = ir.Buffer(name, buffer.dtype, shape)
        self.buffers[buffer] = fresh
        self.edit.allocate(self.scope, fresh)
        return fresh

    def _operand(self, buffer: ir.Buffer, outer: ir.Stmt) -> None:
        sizes = self._positions(buffer)
        if all(size is None for size in sizes):
            return
        fresh = self._grown(buffer, sizes)

        def value(v: Sequence[ir.Expr]) -> ir.Expr:
            indices = list(v)
            inside: list[ir.Expr] = []
            for k, size in enumerate(sizes):
                if size is not None:
                    inside.append(indices[k] < size[0])
                    if self.mode == "clamp":
                        indices[k] = ir.minimum(indices[k], size[0] - 1)
            load = ir.BufferLoad(buffer, tuple(indices))
            if self.mode == "clamp":
                known = self.state.facts(outer)  # the copy runs even if the block does not
                inside = [size[0] > 0 for size in sizes if size and _may_be_empty(known, *size)]
                if not inside:
                    return load
            return ir.if_then_else(ir.all_of(inside), load, ir.const(0, buffer.dtype))

        domain = [ir.Range(ir.const(0, d.dtype), d) for d in fresh.shape]
        known = self.state.analyzer(self.scope.body)
        nest, result = copy_nest(fresh.name, fresh, lambda v: v, value, domain, known)
        self.made.append(result)
        self.edit.insert_before(outer, nest)

    def _result(self, output: ir.Buffer) -> ir.Stmt | None:
        sizes = self._positions(output)
        if all(size is None for size in sizes):
            return None
        fresh = self._grown(output, sizes)
        domain = [ir.Range(ir.const(0, d.dtype), d) for d in output.shape]
        nest, result = copy_nest(
            fresh.name,
            output,
            lambda v: v,
            lambda v: ir.BufferLoad(fresh, tuple(v)),
            domain,
            self.state.analyzer(self.scope.body),
        )
        self.made.append(result)
        return nest

    def _padded_block(self) -> ir.Block:
        iters = tuple(
            it.replace(dom=ir.Range(it.dom.min, self.padded[it.var][1]))
            if it.var in self.padded
            else it
            for it in self.block.iter_vars
        )
        body = self.edit.substitute(self.block.body, self.buffers)
        init = self.block.init
        init = None if init is None else self.edit.substitute(init, self.buffers)
        return with_signature(
            self.block.replace(iter_vars=iters, body=body, init=init),
            self.state.signature_facts(self.block),
        )


def _may_be_empty(known: Analyzer, size: ir.Expr, padded: ir.Expr) -> bool:
    """Whether a dimension may be empty while its padded copy is not."""
    zero = ir.const(0, size.dtype)
    if known.prove(ir.GT(size, zero)):
        return False
    empty = known.copy()
    empty.learn(ir.LE(size, zero))
    return not empty.prove(ir.LE(*ir.match_types(padded, zero)))
