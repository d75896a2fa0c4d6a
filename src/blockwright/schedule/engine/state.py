"""`StepState`, the input of a primitive: program tree, handle lookup, facts, dataflow, errors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import cached_property
from random import Random
from typing import Any, NoReturn

import msgspec

from blockwright import ir
from blockwright.analysis import BlockScope, FlowMemo, Tree, facts_of_initial, facts_of_loop
from blockwright.analysis.canonical.memory import may_overlap, memory_roots
from blockwright.arith import Analyzer
from blockwright.ir.printer import script
from blockwright.schedule.engine.handle import BlockRV, Handle, LoopRV
from blockwright.support import LateText, ScheduleError


class SampledLocation(Enum):
    """A sampled compute location that is not a loop; only `compute_at` accepts it."""

    ROOT = "where it is"
    INLINE = "inlined"


Target = ir.Block | ir.Var | int | SampledLocation
"""The target of a handle: a block node, a loop variable, or a sampled value."""


class StepResult(msgspec.Struct):
    """The result of a primitive.

    Attributes:
        func: the new program; the same object if nothing changed.
        forward: replaced blocks (old → new), for handles.
        results: the targets of the returned handles in the new program.
        decision: the sampled value of a sampling step.
    """

    func: ir.PrimFunc
    forward: dict[ir.Block, ir.Block] = {}
    results: tuple[Target, ...] = ()
    decision: Any = None


class StepState:
    """One function at one step of a schedule; `memo` caches analysis results across steps.

    `taken` is set if the function is the schedule's current one, not a tentative result of a step.
    """

    def __init__(
        self,
        func: ir.PrimFunc,
        resolve: Callable[[Handle], Target],
        step_name: str,
        memo: FlowMemo | None = None,
        random: Random | None = None,
        taken: bool = False,
    ) -> None:
        self.func = func
        self.taken = taken
        self.random = Random(0) if random is None else random
        self._resolve = resolve
        self.step_name = step_name
        self.memo = FlowMemo() if memo is None else memo
        self._scopes: dict[tuple[ir.Block, bool], BlockScope] = {}
        self._next: StepState | None = None

    def following(self, func: ir.PrimFunc) -> StepState:
        """The state of the program that this step produces.

        It is cached, so that the next step reuses the analyses of this step's checks.
        """
        if self._next is None or self._next.func is not func:
            self._next = StepState(func, self._resolve, self.step_name, self.memo, self.random)
        return self._next

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.func)

    # ------------------------------------------------------------------ handles
    def block(self, handle: BlockRV) -> ir.Block:
        result = self._resolve(handle)
        if not isinstance(result, ir.Block):
            self.fail(
                f"{handle!r} is a loop in this schedule",
                code="BW301",
                help="use handles that this schedule returned",
            )
        return result

    def loop(self, handle: LoopRV) -> ir.For:
        result = self.place(handle)
        if isinstance(result, SampledLocation):
            self.fail(
                f"{handle!r} is a sampled location ({result.value}), not a loop",
                code="BW301",
                help="pass it to compute_at",
            )
        return result

    def place(self, handle: LoopRV) -> ir.For | SampledLocation:
        """The loop of a handle, or its sampled location if that is not a loop."""
        result = self._resolve(handle)
        if isinstance(result, SampledLocation):
            return result
        if not isinstance(result, ir.Var):
            self.fail(
                f"{handle!r} is a block in this schedule",
                code="BW301",
                help="use handles that this schedule returned",
            )
        return self.tree.loops[result]

    def stmt(self, handle: BlockRV | LoopRV) -> ir.Block | ir.For:
        return self.block(handle) if isinstance(handle, BlockRV) else self.loop(handle)

    def realize(self, block: ir.Block) -> ir.BlockRealize:
        """The `BlockRealize` of a block; fails for the root block, which cannot be scheduled."""
        if block is self.func.root:
            self.fail(
                "the root block cannot be moved or changed",
                code="BW311",
                guilty=[block],
                help="name a block inside it",
            )
        return self.tree.realize(block)

    def scope(self, node: ir.Stmt) -> ir.Block:
        """The innermost block that encloses a block or loop."""
        result = self.tree.scope(node)
        if result is None:
            self.fail(
                "the root block has no enclosing scope",
                code="BW311",
                guilty=[node],
                help="name a block or loop inside it",
            )
        return result

    def loops_of(self, block: ir.Block) -> str:
        """The loops around a block by name, outermost first, for errors."""
        names = [f.loop_var.name for f in self.tree.loops_above(block)]
        return ", ".join(names) or f"none, as no loop encloses {block.name}"

    # ------------------------------------------------------------------ facts
    def analyzer(self, at: ir.Stmt | None = None) -> Analyzer:
        """A fresh analyzer at a statement: facts of sizes, enclosing loops and block iterators."""
        return self.memo.own_facts(self.tree, at)

    def facts(self, at: ir.Stmt | None = None) -> Analyzer:
        """The same facts with shared cached results, for proofs.

        Expressions that are put into a program must come from `analyzer`, so that their form does
        not depend on earlier queries.
        """
        return self.memo.facts(self.tree, at)

    def signature_facts(self, at: ir.Stmt) -> Analyzer:
        """The facts that a block signature may depend on: sizes and iterators of enclosing blocks.

        Facts of enclosing loops are left out: a block is independent of the loops that run it.
        """
        known = self.analyzer()
        for above in self.tree.ancestors(at):
            if isinstance(above, ir.Block):
                for it in above.iter_vars:
                    known.bind(it.var, it.dom)
        begun = self.tree.initial_of(at)
        return known if begun is None else facts_of_initial(known, self.tree.realize(begun))

    def initial_facts(self, realize: ir.BlockRealize) -> Analyzer:
        """The facts at a block that also hold when its reduction loops are empty."""
        return facts_of_initial(self.analyzer(realize), realize)

    def loop_facts(self, loop: ir.For) -> Analyzer:
        """The facts at a loop, for its extent and for a statement that replaces it."""
        return facts_of_loop(self.analyzer(loop), loop)

    def data_flow(self, scope: ir.Block, *, initial: bool = False) -> BlockScope:
        """Producers and consumers among the blocks of a scope, or of its initial value."""
        result = self._scopes.get((scope, initial))
        if result is None:
            result = BlockScope(self.tree, scope, self.memo, initial=initial)
            self._scopes[scope, initial] = result
        return result

    def flow_at(self, node: ir.Stmt) -> BlockScope:
        """Producers and consumers among the sibling blocks of a block or loop."""
        scope = self.scope(node)
        return self.data_flow(scope, initial=self.tree.in_initial(node, scope))

    # ------------------------------------------------------------------ memory
    @cached_property
    def roots(self) -> dict[ir.Buffer, ir.Buffer]:
        """View → the buffer that it aliases, for views that could not be folded."""
        return memory_roots(self.func)

    def require_one_name(self, buffer: ir.Buffer, guilty: Sequence[ir.Node] = ()) -> None:
        """Require that no other buffer aliases this one.

        A step that replaces the buffer would miss accesses through the alias.
        """
        root = self.roots.get(buffer, buffer)
        names = [
            b.name
            for b in (root, *(v for v, r in self.roots.items() if r is root))
            if b is not buffer
        ]
        if names and root in self.func.buffers and may_overlap(self.func):
            self.fail(
                f"{buffer.name} may overlap {', '.join(names)}, as the function has the "
                'attribute "tir.noalias": False',
                code="BW368",
                guilty=guilty,
                help="drop the attribute if calls pass separate arrays",
            )
        if names:
            self.fail(
                f"the memory of {buffer.name} is also accessed as {', '.join(names)}, with "
                "another element type or layout",
                code="BW368",
                guilty=guilty,
                help=f"access it only through {root.name} in the blocks that are scheduled",
            )

    # ------------------------------------------------------------------ errors
    def fail(
        self,
        rule: str,
        *,
        code: str = "BW310",
        guilty: Sequence[ir.Node] = (),
        help: str | None = None,
    ) -> NoReturn:
        """Raise a `ScheduleError` that shows the program with the guilty nodes underlined."""
        heading = _AS_IT_IS if self.taken else "the program as the step would leave it"
        raise schedule_error(self.step_name, rule, code, self.func, guilty, help, heading)


_AS_IT_IS = "the program, which stays as it is"


def schedule_error(
    step: str,
    rule: str,
    code: str,
    func: ir.PrimFunc | None,
    guilty: Iterable[ir.Node] = (),
    help: str | None = None,
    heading: str = _AS_IT_IS,
) -> ScheduleError:
    """Build an error whose first line names the step and the rule; the program is a note."""
    return ScheduleError(
        f"{step}: {rule}", code=code, help=help, notes=shown(func, guilty, heading)
    )


def shown(
    func: ir.PrimFunc | None, guilty: Iterable[ir.Node], heading: str = _AS_IT_IS
) -> tuple[LateText, ...]:
    """The note that shows the program with nodes underlined; empty if there are no nodes."""
    if func is None:
        return ()
    marks: list[ir.Node] = []
    for node in guilty:  # the implicit root block is not printed: mark its body instead
        body = node.body if isinstance(node, ir.Block) and node is func.root else node
        marks += body.seq if isinstance(body, ir.SeqStmt) else [body]
    if not marks:
        return ()
    return (LateText(lambda: f"{heading}:\n{script(func, marks=marks)}"),)


@contextmanager
def explained(where: str) -> Generator[None]:
    """Prefix errors raised inside with their origin."""
    try:
        yield
    except ScheduleError as error:
        problems = [
            msgspec.structs.replace(d, message=f"{where}: {d.message}") for d in error.diagnostics
        ]
        raise ScheduleError.collect(problems) from error


@contextmanager
def underlined(func: ir.PrimFunc, guilty: Sequence[ir.Node]) -> Generator[None]:
    """Attach this program, with these nodes underlined, to errors inside that show none."""
    try:
        yield
    except ScheduleError as error:
        problems = [
            d if d.notes else msgspec.structs.replace(d, notes=shown(func, guilty))
            for d in error.diagnostics
        ]
        raise ScheduleError.collect(problems) from error.__cause__
