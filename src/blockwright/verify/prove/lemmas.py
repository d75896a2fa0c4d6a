"""Lemmas about intermediate buffers: both programs leave the same content in them.

A term over inputs grows with each stage it passes through, while a schedule step changes one or two
stages. So buffers that both programs fill before any read are compared first, in program order. The
elements of a buffer that was found equal then serve as inputs of later stages.

Soundness: in both programs the buffer has a single copy, and every read follows all of its stores,
so all reads see its final content. The lemma states that an element written by both programs has
the same value in both; every read checks separately that the element has been written. A lemma only
uses lemmas about buffers compared earlier, whose content is final where it reads them, so there
is no circularity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce

from blockwright import ir
from blockwright.verify import isl
from blockwright.verify.budget import begin_step
from blockwright.verify.model.evaluate import Agreed, Values
from blockwright.verify.model.gathers import is_undefined
from blockwright.verify.model.instance_sets import InstanceSet
from blockwright.verify.model.program import LAST, ProgramModel
from blockwright.verify.model.reaching_stores import part
from blockwright.verify.model.statement import Statement
from blockwright.verify.prove.match import require_equal
from blockwright.verify.verdict import Mismatch, Unknown

Twins = tuple[ir.Buffer, ir.Buffer]


def agree(before: Values, after: Values) -> None:
    """Compare buffers that both programs have, and record those that are equal.

    Reads of any other buffer remain terms over the values stored in it.
    """
    for number, twins in enumerate(_twins(before.program, after.program)):
        try:
            result = _compared(before, after, twins, number)
        except (Mismatch, Unknown, isl.Error):
            continue
        for values, buffer, agreed in zip((before, after), twins, result, strict=True):
            values.agreed[buffer] = agreed


def _compared(before: Values, after: Values, twins: Twins, number: int) -> list[Agreed]:
    """Prove that two buffers are equal wherever both are written; return their contents."""
    begin_step(f"whether {twins[0].name} has the same content in both programs")
    sides = list(zip((before, after), twins, strict=True))
    frames = [v.program.whole(b, f"C{number}", LAST) for v, b in sides]
    written = [_written(v.program, b) for v, b in sides]
    holding = [
        _holding(v.program, f, b, w) for (v, b), f, w in zip(sides, frames, written, strict=True)
    ]
    both = holding[0].intersect(holding[1])
    result = [
        v.read(f, b, f.relation(f.coordinates), both)
        for (v, b), f in zip(sides, frames, strict=True)
    ]
    if any(is_undefined(one.skeleton) for value in result for one in value):
        raise Unknown(f"elements of {twins[0].name} are undefined")
    require_equal(both, result[0], result[1], twins[0].name)
    return [Agreed(f"I{number}", w) for w in written]


def _written(program: ProgramModel, buffer: ir.Buffer) -> isl.Set:
    """The elements that have a value at the end; updates alone do not initialize an element."""
    stores = [s.write.range() for s in program.statements if s.buffer is buffer and not s.combiner]
    if not stores:
        raise Unknown(f"{buffer.name} is only updated")
    return reduce(lambda a, b: a.union(b), stores).coalesce()


def _holding(
    program: ProgramModel, frame: InstanceSet, buffer: ir.Buffer, written: isl.Set
) -> isl.Set:
    """The instances of a frame whose element is written."""
    element = program.access(frame, buffer, frame.coordinates)
    return element.intersect_range(written).domain().intersect(frame.domain)


# ------------------------------------------------------------------------------------- candidates
def _twins(before: ProgramModel, after: ProgramModel) -> Iterator[Twins]:
    """Buffers with the same name in both programs (parameters: at the same position), in the order
    in which `before` fills them."""
    first, second = _settled(before), _settled(after)
    places = dict(zip(before.func.buffers, after.func.buffers, strict=True))
    by_name = {b.name: b for b in second if b not in after.params}
    for buffer in first:
        twin = places.get(buffer) if buffer in before.params else by_name.get(buffer.name)
        if twin is not None and twin in second and _same_kind(buffer, twin):
            yield buffer, twin


def _same_kind(a: ir.Buffer, b: ir.Buffer) -> bool:
    return a.dtype is b.dtype and a.ndim == b.ndim


def _settled(program: ProgramModel) -> dict[ir.Buffer, None]:
    """Float buffers with a single copy that are read only after all of their stores.

    Integer buffers are excluded: those used as positions must remain formulas.
    """
    writers: dict[ir.Buffer, list[Statement]] = {}
    readers: dict[ir.Buffer, list[Statement]] = {}
    for statement in program.statements:
        writers.setdefault(statement.buffer, []).append(statement)
        for buffer in _read(program, statement):
            readers.setdefault(buffer, []).append(statement)
    names = Counter(b.name for b in program.owners.allocated)
    return {
        buffer: None
        for buffer, stores in writers.items()
        if buffer in readers and buffer.dtype.is_float
        and (buffer in program.params or (names[buffer.name] == 1 and _is_single(program, buffer)))
        and all(_comes_first(w, r) for w in stores for r in readers[buffer])
    }  # fmt: skip


def _is_single(program: ProgramModel, buffer: ir.Buffer) -> bool:
    """Whether a buffer has a single copy."""
    return buffer.scope == "global" and not program.owners.loops.get(buffer, True)


def _read(program: ProgramModel, statement: Statement) -> set[ir.Buffer]:
    if statement.value is None:
        return set()
    parts = [statement.value, *statement.indices, *(t.read for t in statement.taken)]
    return {
        program.resolve(load.buffer, load.indices)[0]
        for part in parts
        for load in ir.collect(part, ir.BufferLoad)
    }


def _comes_first(writer: Statement, reader: Statement) -> bool:
    """Whether all instances of one statement precede those of another: they share no loop, and the
    first comes earlier in program order."""
    at = part(writer.frame.path, reader.frame.path)
    if at is None:
        return False
    x, y = writer.frame.path[at], reader.frame.path[at]
    shared = any(isinstance(step, str) for step in writer.frame.path[:at])
    return not shared and isinstance(x, int) and isinstance(y, int) and x < y
