"""Compile statements to closures that run on an environment."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np

from blockwright.interp.calls import Run
from blockwright.interp.combine import combines_lanes, kind_of
from blockwright.interp.gpu.hardware import HardwareCompiler
from blockwright.interp.gpu.launch import LaunchCompiler
from blockwright.interp.lanes import (
    CompiledLoop,
    Env,
    RunState,
    compress,
    narrowed,
    one_by_one,
    per_lane,
    pick,
    run_loop,
    run_step,
)
from blockwright.interp.memory import Pointer
from blockwright.interp.nest import chain_of, plan_nest
from blockwright.ir import (
    AssertStmt,
    AttrStmt,
    BlockRealize,
    BufferStore,
    Call,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Node,
    SeqStmt,
    Stmt,
    Var,
    While,
    walk,
)
from blockwright.ir import stmt as S
from blockwright.support import InterpretError, coded_message


class StmtCompiler(LaunchCompiler):
    """Compiles the body of one function."""

    _statements: ClassVar[dict[type[Stmt], str]] = {
        BufferStore: "store", For: "_for", While: "_while", LetStmt: "_let_stmt",
        AttrStmt: "_attr", IfThenElse: "_if", SeqStmt: "_seq", Evaluate: "_evaluate",
        AssertStmt: "_assert", S.Allocate: "_allocate", DeclBuffer: "_declare",
        BlockRealize: "_realize",
    }  # fmt: skip

    def stmt(self, node: Stmt) -> Run:
        method = self._statements.get(type(node))
        if method is None:
            raise InterpretError(
                f"cannot run the statement {type(node).__name__}", code="BW757", span=node.span
            )
        outer = self.here
        self.here = node.span or outer
        run: Run = getattr(self, method)(node)
        self.here = outer
        return self.kernels_begin(node, run)

    def _seq(self, node: SeqStmt) -> Run:
        return self._seq_of(self.sequence(node))

    @staticmethod
    def _seq_of(parts: list[Run]) -> Run:
        if len(parts) == 1:
            return parts[0]

        def seq(env: Env) -> None:
            for part in parts:
                part(env)

        return seq

    def _for(self, node: For) -> Run:
        if node.kind is ForKind.THREAD_BINDING:
            return self.axis_loop(node)
        loops, inner = chain_of(node, self.privates)
        known = frozenset(self.defined)
        headers: list[CompiledLoop] = []
        for loop in loops:
            low, extent = self.index(loop.min), self.index(loop.extent)
            slot = self.define(loop.loop_var)
            self.visible.append((loop.loop_var.name, slot))
            headers.append(
                CompiledLoop(
                    loop.loop_var.name,
                    slot,
                    low,
                    extent,
                    kind_of(loop),
                    _jumps(loop),
                    combines_lanes(loop),
                    waits(loop),
                )
            )
        owned = [self.new_buffer(b) for b in self.privates.get(loops[-1], ())]
        body = self._seq_of([*owned, self.stmt(inner)])
        run = body
        for depth in reversed(range(len(loops))):
            run = self._loop(loops[depth:], inner, headers[depth:], body, run, known)
        del self.visible[-len(loops) :]
        return run

    def _loop(
        self,
        loops: list[For],
        inner: Stmt,
        headers: list[CompiledLoop],
        innermost: Run,
        below: Run,
        known: frozenset[Var],
    ) -> Run:
        """The chain from one loop on: as lanes if that is exact, else in order."""
        nest = plan_nest(self, loops, inner, headers, innermost, self.privates, known)
        header = headers[0]

        def loop(env: Env) -> None:
            if nest is None or not env[1].vectorize or not nest.run(env):
                run_loop(env, header, below)

        return loop

    def _while(self, node: While) -> Run:
        condition, body = self.condition(node.condition), self.stmt(node.body)
        each_alone = _jumps(node) and not waits(node)

        def loop(env: Env) -> None:
            for lanes in one_by_one(env) if each_alone else [env]:
                together(lanes)

        def together(env: Env) -> None:
            state: RunState = env[1]
            while True:
                if state.limit is not None:
                    state.limit.take(1)
                holds = condition(env)
                if not np.any(holds):
                    return
                if not np.all(holds):
                    env = compress(env, holds)
                if not run_step(env, body):
                    return

        return loop

    def _if(self, node: IfThenElse) -> Run:
        condition, then = self.condition(node.condition), self.stmt(node.then_case)
        in_turns = self.launch is not None and any(
            isinstance(n, Call) and n.op == "ptx_wait_barrier" for n in walk(node)
        )
        other = None if node.else_case is None else self.stmt(node.else_case)

        def branch(env: Env) -> None:
            chosen = condition(env)
            if type(chosen) is not np.ndarray:
                if chosen:
                    then(env)
                elif other is not None:
                    other(env)
                return
            if in_turns and other is not None and chosen.any() and not chosen.all():
                mine, theirs = narrowed(env, chosen, then), compress(env, ~chosen)
                env[1].team.branches.run([partial(then, mine), partial(other, theirs)])
                return
            if chosen.any():
                then(env if chosen.all() else narrowed(env, chosen, then))
            if other is not None and not chosen.all():
                other(compress(env, ~chosen))

        return branch

    def _let_stmt(self, node: LetStmt) -> Run:
        if node.var.dtype.is_handle:
            bound, vector = self.pointer(node.value), False
            slot = self.define(node.var)
        else:
            is_value = not (node.value.dtype.is_int and self.is_index(node.value))
            bound = self.value(node.value) if is_value else self.index(node.value)
            slot, vector = self.define(node.var, is_value), node.var.dtype.lanes > 1
        body, site = self.stmt(node.body), self.site(node)

        def let(env: Env) -> None:
            value = bound(env)
            if type(value) is Pointer and type(value.byte) is np.ndarray:
                raise site.error(
                    env,
                    "BW757",
                    f"{node.var.name} points to a different address in each thread",
                    help="write the address where it is used",
                )
            env[slot] = per_lane(env, value, vector)
            body(env)

        return let

    def _attr(self, node: AttrStmt) -> Run:
        return self.stmt(node.body)

    def _assert(self, node: AssertStmt) -> Run:
        condition, site = self.condition(node.condition), self.site(node)
        values = [self.value(value) for value in node.values]

        def check(env: Env) -> None:
            holds = np.asarray(condition(env))
            if not holds.all():
                lane = int(np.argmin(holds)) if holds.ndim else 0
                result = tuple(int(pick(value(env), lane)) for value in values)
                text = node.message % result if result else node.message
                coded = coded_message(text) or ("BW753", f"assertion failed: {text}", None)
                raise site.error(env, *coded[:2], lane, coded[2])

        return check


def _jumps(loop: For | While) -> bool:
    """Whether a loop's own body may break or continue."""
    stack: list[Node] = [loop.body]
    while stack:
        node = stack.pop()
        if isinstance(node, Call) and node.op in ("break", "continue"):
            return True
        if not isinstance(node, (For, While)):
            stack += node.children()
    return False


def waits(loop: For | While) -> bool:
    """Whether threads synchronize inside a loop."""
    return any(isinstance(n, Call) and n.op in HardwareCompiler.operations for n in walk(loop.body))
