"""Check lowering pass by pass: each pass must preserve the results of the program.

Schedule steps are proved, lowering passes are trusted. The interpreter runs programs with blocks
and flat ones alike, so programs are run after each pass that changed something, for several sizes:
the first pass after which a result differs is at fault. Most programs are run only before the first
pass and after the last one, and after all others if these two differ.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from blockwright import ir
from blockwright.lower import LOWERING, LowerContext, LowerOptions, check_flat
from blockwright.support import BlockwrightError, BuildError, InterpretError
from blockwright.target import Target
from blockwright.testing.arrays import make_arrays, random_sizes, small_sizes
from blockwright.testing.check import Reference
from blockwright.testing.moves.checks import unbound
from fuzzing.schedules.finding import Finding, symptom

_TARGETS = ("x86-64", "x86-64-v3", "x86-64-v4")
_LANES = (4, 16, 96)
_SIZES = 2
"""Number of inputs for a program with symbolic sizes, besides small sizes; one with fixed sizes has
one."""
_ITERATIONS = 5_000
"""Limit on loop iterations per run before lowering; flat programs take up to 1000 times as many."""
_EVERY = 0.25
"""Fraction of programs that are run after every pass."""
_VECTORS = "vectorize_loops"
"""From this pass on, reductions combine lanes in halves, and unused lanes may be read."""


class Stage(msgspec.Struct, frozen=True, eq=False):
    """A pass that changed a program.

    Attributes:
        exact: whether results must be bit-identical.
        vectors: whether the program contains vectors.
    """

    name: str
    before: ir.PrimFunc
    after: ir.PrimFunc
    exact: bool
    vectors: bool

    @property
    def program(self) -> ir.PrimFunc:
        """The program after the pass, as the interpreter can run it."""
        return _poisoned(self.after) if self.vectors else _in_order(self.after)


def check_lowering(program: ir.PrimFunc, after: ir.PrimFunc, seed: int) -> str | None:
    """Raise a `Finding` for the first pass after which the program computes something else.

    Args:
        program: the original program; determines valid inputs, such as row numbers.
        after: the scheduled program; thread axes are treated as serial loops.
        seed: seed of the inputs, the target, and the maximum vector length.

    Returns the error code if lowering refuses the program, BW757 if it exceeds the iteration limit,
    None if the check passes.
    """
    func = unbound(after)
    symbolic = any(ir.free_vars(n) for b in func.buffers for n in b.shape)
    sizes = [random_sizes(program, seed + k) for k in range(_SIZES if symbolic else 1)]
    sizes += small_sizes(program, seed) if symbolic else []
    try:
        references = [_reference(program, func, seed + k, given) for k, given in enumerate(sizes)]
    except InterpretError as error:
        if error.code != "BW757":
            raise
        return error.code

    def check(stage: Stage) -> None:
        for reference in references:
            reference.assert_met(stage.program, exact=stage.exact)

    stages, refused = check_stages(func, check, seed)
    if refused is not None or not stages:
        return refused
    if symbolic:
        _check_sizes(references, stages[-1].after)
    return None


def check_stages(
    func: ir.PrimFunc, check: Callable[[Stage], None], seed: int
) -> tuple[list[Stage], str | None]:
    """Lower a program and raise a `Finding` for the first pass whose result fails a check.

    Args:
        func: the program, without thread axes.
        check: raises an error if the program after a pass does not mean the same.
        seed: seed of the target, the maximum vector length, and whether all passes are checked.

    Returns the passes that change the program, and the code of the error by which lowering refuses
    it, or None.
    """
    chance = random.Random(seed)
    target, lanes = Target(chance.choice(_TARGETS)), chance.choice(_LANES)
    stages: list[Stage] = []
    refused = _lowered(func, LowerContext(target, LowerOptions(max_lanes=lanes)), stages)
    if refused is not None or not stages:
        return stages, refused
    if chance.random() < _EVERY or _error(check, stages[-1]) is not None:
        for stage in stages:
            error = _error(check, stage)
            if error is not None:
                words = f"{error}\n--- before {stage.name} ---\n{stage.before!r}"
                raise Finding(f"{symptom(error)} after {stage.name}", words) from error
    check_flat(stages[-1].after)
    return stages, None


def _error(check: Callable[[Stage], None], stage: Stage) -> Exception | None:
    """The error of a check of the program after a pass."""
    try:
        check(stage)
    except Exception as error:  # noqa: BLE001  every failure is a finding, of any kind
        return error
    return None


def _check_sizes(references: Sequence[Reference], func: ir.PrimFunc) -> None:
    """Check that no loop extent is negative; the interpreter itself checks buffer sizes."""

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.For) or ir.is_const_int(node.extent):
            return None
        sized = ir.GE(node.extent, ir.const(0, node.extent.dtype))
        text = f"negative extent of loop {node.loop_var.name}"
        return ir.seq([ir.AssertStmt(sized, text), node])

    checked = _poisoned(func.replace(body=ir.rewrite_bottom_up(func.body, change)))
    for reference in references:
        try:
            reference.assert_met(checked)
        except InterpretError as error:
            raise Finding(f"{symptom(error)} after lowering", f"{error}\n{func!r}") from error


def _reference(
    program: ir.PrimFunc, func: ir.PrimFunc, seed: int, sizes: Mapping[str, int]
) -> Reference:
    arrays = make_arrays(program, seed, sizes)
    return Reference(func, seed=seed, sizes=sizes, arrays=arrays, limit=_ITERATIONS)


def _lowered(func: ir.PrimFunc, context: LowerContext, stages: list[Stage]) -> str | None:
    """Run the passes and record those that change the program; return the code of a refusal."""
    exact, vectors = True, False
    for name, pass_ in LOWERING:
        if name == _VECTORS:
            exact, vectors = not any(map(_combines, ir.loops(func.body))), True
        try:
            after = pass_(func, context)
        except Exception as error:
            code = _refusal(error)
            if code is not None:
                return code
            raise Finding(f"{symptom(error)} in {name}", f"{error}\n{func!r}") from error
        if after.body is not func.body:
            stages.append(Stage(name, func, after, exact, vectors))
        func = after
    return None


def _refusal(error: Exception) -> str | None:
    """The code of an error that rejects what the schedule requests; None for other errors."""
    if not isinstance(error, BlockwrightError):
        return None
    schedule = error.code.startswith("BW3") and error.code != "BW309"
    build = isinstance(error, BuildError) and error.code != "BW601"
    return error.code if schedule or build else None


def _in_order(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace vectorized loops whose lanes store to one element by serial loops.

    Blocks declare such a store as a reduction; without them the interpreter reports a race.
    """

    def change(node: ir.Node) -> ir.Node | None:
        return node.replace(kind=ir.ForKind.SERIAL) if _combines(node) else None

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))


def _poisoned(func: ir.PrimFunc) -> ir.PrimFunc:
    """Fill local buffers with NaN or other odd values.

    Masked vectors read whole registers and ignore the lanes never written: such values may be
    read, but must not affect results.
    """

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.Allocate) or node.buffer.scope != "local":
            return None
        return node.replace(body=ir.seq([_odd(node.buffer), node.body]))

    return func.replace(body=ir.rewrite_bottom_up(func.body, change))


def _odd(buffer: ir.Buffer) -> ir.Stmt:
    (size,) = buffer.shape
    place = ir.Var("place", size.dtype)
    kind = buffer.dtype
    value = ir.const(math.nan if kind.is_float else True if kind.is_bool else 77, kind)
    store = ir.BufferStore(buffer, value, (place,))
    return ir.For(place, ir.const(0, size.dtype), size, ir.ForKind.SERIAL, store)


def _combines(node: ir.Node) -> bool:
    return (
        isinstance(node, ir.For)
        and node.kind is ir.ForKind.VECTORIZED
        and any(
            not any(ir.uses_var(index, node.loop_var) for index in store.indices)
            for store in ir.collect(node.body, ir.BufferStore)
        )
    )
