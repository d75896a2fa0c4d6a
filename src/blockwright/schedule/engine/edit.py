"""`Edit`: collects replaced statements and changed buffers, and rebuilds the function once.

Only the paths from the root to replaced statements are rebuilt. Every block that is rebuilt, by a
substitution or because a statement below it changed, is recorded in `forward`, so that handles
survive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from blockwright import ir
from blockwright.analysis.canonical.control_reads import (
    Loaded,
    loaded_around,
    stating_inside,
    stating_loads,
)
from blockwright.analysis.canonical.memory import memory_roots, stating
from blockwright.analysis.validate.signatures import unstated
from blockwright.analysis.validate.well_formed import find_problems
from blockwright.ir.printer import script
from blockwright.schedule.engine.explicit_regions import stated_by_user
from blockwright.schedule.engine.forwarding import Forwarding, defined_buffers, with_signature
from blockwright.schedule.engine.state import StepResult, StepState, Target


class _Substitute(Forwarding):
    """Replaces variables and buffers in a statement; records changed blocks."""

    def __init__(
        self, stmt: ir.Stmt, mapping: Mapping[Any, ir.Node], forward: dict[ir.Block, ir.Block]
    ) -> None:
        super().__init__(forward)
        self._memo.update(mapping)
        self._stmt = stmt
        self._own: set[ir.Buffer] | None = None

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        """Rewrite the shapes of buffers that the statement defines, not of buffers from outside:
        loads in those shapes are evaluated where the buffers are defined."""
        new = self.descend(node)
        if new is not node and self._own is None:
            self._own = defined_buffers(self._stmt)
        return new if self._own is not None and node in self._own else node

    def rewrite_SeqStmt(self, node: ir.SeqStmt) -> ir.Stmt:
        new = self.descend(node)
        return new if new is node else ir.seq(new.seq)


_NAMING = (ir.LetStmt, ir.DeclBuffer, ir.Allocate)
"""Statements between loops and blocks that define a variable or buffer."""


class _States(ir.Mutator):
    """Adds aliased memory of views, and reads of enclosing control flow, to block signatures.

    Records changed blocks in `forward`.
    """

    def __init__(
        self,
        roots: Mapping[ir.Buffer, ir.Buffer],
        loaded: Loaded,
        forward: dict[ir.Block, ir.Block],
    ) -> None:
        super().__init__()
        self.roots, self.loaded, self.forward = roots, loaded, forward

    def rewrite_Buffer(self, node: ir.Buffer) -> ir.Buffer:
        return node

    def rewrite_Block(self, node: ir.Block) -> Any:
        new = stating_loads(self.descend(node), self.loaded.get(node, ()))
        if self.loaded:
            new = stating_inside(new)
        new = stating(new, self.roots)
        if new is not node:
            self.forward[node] = new
        return new


class Edit:
    """Collects changes to one function and builds the result once."""

    def __init__(self, state: StepState) -> None:
        self.state = state
        self.tree = state.tree
        self.forward: dict[ir.Block, ir.Block] = {}
        self._replaced: dict[ir.Stmt, ir.Stmt | None] = {}
        self._allocs: dict[ir.Block, tuple[list[ir.Buffer], set[ir.Buffer]]] = {}
        self._touched: set[ir.Stmt] = set()
        self._refresh = False
        self._params = state.func.buffer_map
        self._before: dict[ir.Stmt, list[ir.Stmt]] = {}
        self._after: dict[ir.Stmt, list[ir.Stmt]] = {}

    # ------------------------------------------------------------------ changes
    def substitute(self, stmt: ir.Stmt, mapping: Mapping[Any, ir.Node]) -> Any:
        """`stmt` with variables or buffers replaced; blocks inside are forwarded."""
        for old in mapping:
            if isinstance(old, ir.Buffer):
                self.state.require_one_name(old)
        return _Substitute(stmt, mapping, self.forward)(stmt) if mapping else stmt

    def inside(self, block: ir.Block, mapping: Mapping[Any, ir.Node]) -> ir.Block:
        """The contents of a block, including its own buffers and views, with iterators replaced.

        The result has no iterators, and only the read regions that the user declared: the caller
        sets the rest.
        """
        names = stated_by_user(block)
        stated = tuple(r for r in block.reads if r.buffer.name in names)
        return self.substitute(block.replace(iter_vars=(), reads=stated, writes=()), mapping)

    def replace(self, old: ir.Stmt, new: ir.Stmt | None) -> None:
        """Replace `old` by `new`; None removes the statement and loops that become empty."""
        self._replaced[old] = new
        self._touch(old)

    def replace_block(self, old: ir.Block, new: ir.Block) -> None:
        """Replace a block that keeps its identity for handles."""
        self.forward[old] = new
        self.replace(old, new)

    def insert_before(self, stmt: ir.Stmt, new: ir.Stmt) -> None:
        """Insert `new` before `stmt`, which may itself be replaced or changed inside."""
        self._before.setdefault(stmt, []).append(new)
        self._touch(stmt)

    def insert_after(self, stmt: ir.Stmt, new: ir.Stmt) -> None:
        """Insert `new` after `stmt`, which may itself be replaced or changed inside."""
        self._after.setdefault(stmt, []).append(new)
        self._touch(stmt)

    def allocate(self, block: ir.Block, *buffers: ir.Buffer) -> None:
        self._allocs.setdefault(block, ([], set()))[0].extend(buffers)
        self._touch(block)

    def free(self, block: ir.Block, *buffers: ir.Buffer) -> None:
        for buffer in buffers:
            self.state.require_one_name(buffer)
        self._allocs.setdefault(block, ([], set()))[1].update(buffers)
        self._touch(block)

    def replace_parameter(self, old: ir.Buffer, new: ir.Buffer) -> None:
        """Bind another buffer to the parameter that `old` is bound to."""
        self._params = tuple((v, new if b is old else b) for v, b in self._params)

    def refresh_signatures(self) -> None:
        """Recompute the regions of enclosing blocks, because accesses inside them change."""
        self._refresh = True

    def _touch(self, node: ir.Stmt) -> None:
        self._touched.add(node)
        for above in self.tree.ancestors(node):
            if above in self._touched:
                break
            self._touched.add(above)

    # ------------------------------------------------------------------ building
    def finish(self, *results: Target) -> StepResult:
        """Build the new function; `results` are handle targets (blocks: old or new)."""
        body = self._build(self.state.func.body)
        assert body is not None
        func = self.state.func.replace(body=body, buffer_map=self._params)
        func = self._with_memory(func)
        self._require_defined(func)
        self._require_stated()
        final = tuple(self.latest(r) if isinstance(r, ir.Block) else r for r in results)
        return StepResult(func, self.forward, final)

    def _with_memory(self, func: ir.PrimFunc) -> ir.PrimFunc:
        """Complete block signatures by aliased memory of views and reads of control flow.

        This includes blocks whose signatures the step has recomputed.
        """
        roots, loaded = memory_roots(func), loaded_around(func)
        if not roots and not loaded:
            return func
        return func.replace(body=_States(roots, loaded, self.forward)(func.body))

    def _require_defined(self, func: ir.PrimFunc) -> None:
        """Require that definitions still dominate their uses (BW367).

        Primitives ensure this for loop variables and blocks. Let values, views and allocations may
        be anywhere between them.
        """
        around = (n for b in self.tree.blocks for n in self.tree.ancestors(self.tree.realize(b)))
        if not any(isinstance(n, _NAMING) for n in around):
            return
        known = {p.message for p in find_problems(self.state.func)}
        for problem in find_problems(func):
            if problem.code == "BW212" and problem.message not in known:
                what = problem.message.removeprefix(f"{func.name}: ")
                self.state.fail(
                    f"after the step {what}",
                    code="BW367",
                    guilty=[*self._before, *self._after, *self._replaced],
                    help="apply the step to a loop inside the scope of the "
                    "definition, or replace the name by its value",
                )

    def _require_stated(self) -> None:
        """Require that enclosing blocks still declare all accesses inside them (BW366).

        This cannot be proved if the regions inside are derived less precisely than before.
        """
        for block in self.tree.blocks:
            inner = block is not self.state.func.root and block in self._touched
            if not inner or block in self._replaced or block not in self.forward:
                continue
            for word, region, _ in unstated(self.latest(block), self.state.signature_facts(block)):
                self.state.fail(
                    f"after the step block {block.name} {word} {script(region)}, as "
                    "far as can be proved: more than it declares",
                    code="BW366",
                    guilty=[block],
                    help="apply the step before blockize creates the block "
                    "around these loops, or to other loops",
                )

    def rebuilt(self, node: ir.Stmt) -> ir.Stmt:
        """A statement with the changes below it applied, without the rest of the function."""
        result = self._build(node)
        assert result is not None
        return result

    def latest(self, block: ir.Block) -> ir.Block:
        """The latest replacement of a block."""
        while block in self.forward:
            block = self.forward[block]
        return block

    def _build(self, node: ir.Stmt) -> ir.Stmt | None:
        built = self._build_inner(node)
        before, after = self._before.get(node, []), self._after.get(node, [])
        if not before and not after:
            return built
        return ir.seq([*before, *([] if built is None else [built]), *after])

    def _build_inner(self, node: ir.Stmt) -> ir.Stmt | None:
        if node in self._replaced:
            return self._replaced[node]
        if node not in self._touched:
            return node
        if isinstance(node, ir.SeqStmt):
            parts = [p for p in map(self._build, node.seq) if p is not None]
            return ir.seq(parts) if parts else None
        if isinstance(node, ir.Block):
            return self._build_block(node)
        lost = False

        def rebuilt(child: ir.Node) -> ir.Node:
            nonlocal lost
            if not isinstance(child, ir.Stmt):
                return child
            new = self._build(child)
            lost = lost or new is None
            return child if new is None else new

        result = node.map_children(rebuilt)
        return None if lost else result

    def _build_block(self, node: ir.Block) -> ir.Block:
        body = self._build(node.body)
        if body is None:
            self.state.fail(
                "nothing would be left in the enclosing block",
                code="BW349",
                guilty=[node],
                help="keep at least one block in it",
            )
        init = None if node.init is None else self._build(node.init)
        added, freed = self._allocs.get(node, ((), ()))
        kept = tuple(b for b in node.alloc_buffers if b not in freed)
        new = node.replace(body=body, init=init, alloc_buffers=(*kept, *added))
        if self._refresh and node is not self.state.func.root:
            new = with_signature(new, self.state.signature_facts(node))
        self.forward[node] = new
        return new


def wrap_loops(body: ir.Stmt, loops: Iterable[tuple[ir.Var, ir.Expr]]) -> ir.Stmt:
    """`body` in serial loops from zero; `loops` lists the outermost first."""
    for var, extent in reversed(list(loops)):
        zero = ir.const(0, extent.dtype)
        body = ir.For(var, zero, extent, ir.ForKind.SERIAL, body)
    return body
