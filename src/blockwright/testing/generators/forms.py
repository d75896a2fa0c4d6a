"""Alternative forms of a random program.

Allocation statements instead of buffer lists of blocks, gather signatures with single elements,
32-bit indices, and parameters that may alias.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from blockwright import ir
from blockwright.analysis import find_problems, find_violations
from blockwright.interp import interpret
from blockwright.ir.attributes import NOALIAS
from blockwright.ir.printer import script
from blockwright.schedule import Schedule, ScheduleError
from blockwright.script.ir import from_source
from blockwright.support import InterpretError
from blockwright.testing.arrays import make_arrays

Change = Callable[[ir.PrimFunc, random.Random], ir.PrimFunc]


def with_allocations(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Allocate buffers by `T.allocate` around the statements that use them.

    Sometimes a block is moved into a loop of its consumer first, so that the allocation is inside.
    """
    moved = _moved(func, chance) if chance.random() < 0.6 else func
    for candidate in (moved, func):
        result = _allocated(candidate, chance)
        if result is not candidate and _runs(result):
            return result
    return func


def _moved(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    sch = Schedule(func)
    blocks = sch.get_child_blocks(sch.get_block("root"))
    for block in chance.sample(blocks, len(blocks)):
        places = [f for consumer in sch.get_consumers(block)[-1:] for f in sch.get_loops(consumer)]
        if not places:
            continue
        try:
            sch.compute_at(block, chance.choice(places))
        except ScheduleError:
            continue
        return sch.func
    return func


def _allocated(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    root = func.root
    body, kept = root.body, list[ir.Buffer]()
    for buffer in root.alloc_buffers:
        around = _around(body, buffer) if chance.random() < 0.7 else None
        if around is None:
            kept.append(buffer)
        else:
            body = around
    if len(kept) == len(root.alloc_buffers):
        return func
    assert isinstance(func.body, ir.BlockRealize)
    block = root.replace(body=body, alloc_buffers=tuple(kept))
    return func.replace(body=func.body.replace(block=block))


def _around(stmt: ir.Stmt, buffer: ir.Buffer) -> ir.Stmt | None:
    """Wrap the fewest statements that use a buffer in an allocation; None if none uses it."""
    if not _uses(stmt, buffer):
        return None
    if isinstance(stmt, ir.For):
        body = _around(stmt.body, buffer)
        return None if body is None else stmt.replace(body=body)
    if isinstance(stmt, ir.SeqStmt):
        using = [k for k, part in enumerate(stmt.seq) if _uses(part, buffer)]
        first, last = using[0], using[-1]
        if first < last:
            inside = ir.Allocate(buffer, ir.seq(stmt.seq[first : last + 1]))
        else:
            result = _around(stmt.seq[first], buffer)
            assert result is not None
            inside = result
        return ir.seq([*stmt.seq[:first], inside, *stmt.seq[last + 1 :]])
    return ir.Allocate(buffer, stmt)


def _uses(stmt: ir.Stmt, buffer: ir.Buffer) -> bool:
    return any(node is buffer for node in ir.walk(stmt))


def _runs(func: ir.PrimFunc) -> bool:
    """Whether the interpreter accepts the program.

    A buffer that lives in one iteration must be written before it is read there.
    """
    try:
        interpret(func, *make_arrays(func, 0))
    except InterpretError:
        return False
    return True


def with_narrow_gathers(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Read the program from a script whose signatures state gathered regions as single elements.

    Published programs state `A[I[vi]]`; the parser widens such regions to whole dimensions.
    """

    def change(node: ir.Node) -> ir.Node | None:
        if not isinstance(node, ir.Block) or ir.collect(node.body, ir.Block):
            return None
        stmts = [s for s in (node.init, node.body) if s is not None]
        written = {r.buffer for r in node.writes}.union(node.alloc_buffers)
        accesses = [a for stmt in stmts for a in ir.accesses(stmt)]
        inner = {f.loop_var for f in ir.loops(node.body)}
        inner |= {n.var for n in ir.walk(node.body) if isinstance(n, (ir.LetStmt, ir.Let))}

        def narrow(region: ir.BufferRegion, kind: type) -> ir.BufferRegion:
            mine = [a for a in accesses if a.buffer is region.buffer and isinstance(a, kind)]
            if len(mine) != 1 or not any(ir.collect(i, ir.BufferLoad) for i in mine[0].indices):
                return region
            loaded = {n.buffer for i in mine[0].indices for n in ir.collect(i, ir.BufferLoad)}
            if any(ir.uses_var(i, inner) for i in mine[0].indices) or loaded & written:
                return region
            return region.replace(region=tuple(map(ir.point, mine[0].indices)))

        if chance.random() < 0.5:
            return None
        reads = tuple(narrow(r, ir.BufferLoad) for r in node.reads)
        return node.replace(reads=reads)

    body = ir.rewrite_bottom_up(func.body, change)
    if body is func.body:
        return func
    read = from_source(script(func.replace(body=body)))
    assert isinstance(read, ir.PrimFunc)
    return read


def with_short_indices(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Read the program from a script with 32-bit indices and sizes, the default of scripts.

    Unchanged if a literal or a shift needs 64 bits: untyped literals that are data change their
    type together with the indices.
    """
    del chance
    if any(map(_needs_64_bits, ir.walk(func))):
        return func
    text = script(func).replace('index_dtype="int64"', 'index_dtype="int32"')
    text = re.sub(r"T\.int64\((\d*)\)", lambda m: m[1] or "T.int32()", text)
    read = from_source(re.sub(r"(\bat\d+): T\.int64 =", r"\1: T.int32 =", text))  # named values
    assert isinstance(read, ir.PrimFunc)
    return read


def _needs_64_bits(node: ir.Node) -> bool:
    """Whether this is a literal beyond 32 bits, or a shift by 32 or more."""
    if isinstance(node, ir.IntImm):
        return node.dtype.bits == 64 and not -(2**31) <= node.value < 2**31
    if isinstance(node, ir.Call) and node.op in ("shift_left", "shift_right"):
        return (ir.const_int(node.args[1]) or 0) >= 32
    return False


def with_one_memory(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """Let parameters alias if two have the same shape and the program stays valid.

    Parallel iterations may conflict if parameters alias. `make_arrays` passes one array for some
    of the parameters.
    """
    del chance
    floats = [b for b in func.buffers if b.dtype.is_float]
    if not any(_same(a.shape, b.shape) for k, a in enumerate(floats) for b in floats[:k]):
        return func
    changed = func.replace(attrs={**func.attrs, NOALIAS: False})
    return func if find_violations(changed) else changed


def with_strides(func: ir.PrimFunc, chance: random.Random) -> ir.PrimFunc:
    """The program with strides for some of its allocated buffers: dimensions in another order, with
    gaps in between."""
    strided: dict[ir.Buffer, ir.Buffer] = {}
    calls = [c for c in ir.collect(func.body, ir.Call) if c.op == "address_of"]
    viewed = {load.buffer for call in calls for load in ir.collect(call, ir.BufferLoad)}
    for buffer in func.root.alloc_buffers:
        if not buffer.ndim or buffer in viewed or chance.random() < 0.4:
            continue
        strides: dict[int, ir.Expr] = {}
        step: ir.Expr = ir.const(chance.choice([1, 1, 2]), buffer.shape[0].dtype)
        for axis in chance.sample(range(buffer.ndim), buffer.ndim):
            strides[axis] = step
            step = ir.add(ir.mul(step, buffer.shape[axis]), chance.choice([0, 0, 3]))
        strided[buffer] = buffer.replace(strides=tuple(strides[k] for k in range(buffer.ndim)))

    def change(node: ir.Node) -> ir.Node | None:
        return strided.get(node) if isinstance(node, ir.Buffer) else None

    if not strided:
        return func
    result = func.replace(body=ir.rewrite_bottom_up(func.body, change))
    return func if find_problems(result) else result


def _same(a: Sequence[ir.Expr], b: Sequence[ir.Expr]) -> bool:
    return len(a) == len(b) and all(ir.structural_equal(x, y) for x, y in zip(a, b, strict=True))


FORMS: tuple[tuple[Change, float], ...] = (
    (with_allocations, 0.12),
    (with_narrow_gathers, 0.5),
    (with_short_indices, 0.2),
    (with_one_memory, 0.08),
)
"""Changes of a program, with the fraction of programs to try each on."""
