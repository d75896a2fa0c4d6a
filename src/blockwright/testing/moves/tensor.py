"""Moves for `tensorize`, and intrinsics that fit small programs."""

from __future__ import annotations

import re

from blockwright import ir
from blockwright.intrin import TensorIntrin, outer_product_name
from blockwright.schedule import BlockRV, LoopRV
from blockwright.script.ir import from_source
from blockwright.testing.moves.player import Move, NothingToTry, Player

_NAME = re.compile(r"random_(copy|dot)_(\d+)_(\w+)\Z")
_COPY = """
@T.prim_func
def intrinsic(a: T.handle, b: T.handle):
    A = T.match_buffer(a, ({n},), "{dtype}", offset_factor=1)
    B = T.match_buffer(b, ({n},), "{dtype}", offset_factor=1)
    with T.block("root"):
        T.reads(A[0:{n}])
        T.writes(B[0:{n}])
        {body}
"""
_DOT = """
@T.prim_func
def intrinsic(a: T.handle, b: T.handle, c: T.handle):
    A = T.match_buffer(a, ({n},), "{dtype}", offset_factor=1)
    B = T.match_buffer(b, ({n},), "{dtype}", offset_factor=1)
    C = T.match_buffer(c, (1,), "{dtype}", offset_factor=1)
    with T.block("root"):
        T.reads(C[0], A[0:{n}], B[0:{n}])
        T.writes(C[0])
        {body}
"""
_MEANING = """for i in range({n}):
            with T.block("update"):
                vi = T.axis.{kind}({n}, i)
                {store}"""
_STORES = {"copy": ("spatial", "B[vi] = A[vi]"), "dot": ("reduce", "C[0] = C[0] + A[vi] * B[vi]")}
_LOOPS = {
    "copy": "for i in range({n}):\n            B[{n} - 1 - i] = A[{n} - 1 - i]",
    "dot": "for i in range({n}):\n            C[0] = C[0] + A[i] * B[i]",
}


def _intrinsic(name: str) -> TensorIntrin | None:
    """`random_copy_4_float32`, a copy in reverse order, and `random_dot_4_float32`, a dot product.

    They form a family, so that traces that name one replay if this module is loaded.
    """
    match = _NAME.match(name)
    if match is None:
        return None
    what, n, dtype = match[1], match[2], match[3]
    frame = _COPY if what == "copy" else _DOT
    kind, store = _STORES[what]
    bodies = (_MEANING.format(n=n, kind=kind, store=store), _LOOPS[what].format(n=n))
    result = [from_source(frame.format(n=n, dtype=dtype, body=body)) for body in bodies]
    programs = [p for p in result if isinstance(p, ir.PrimFunc)]
    return TensorIntrin(name, *programs)


TensorIntrin.add_family(_intrinsic, compare=False)


def _is_copy(block: ir.Block) -> bool:
    body = block.body
    return isinstance(body, ir.BufferStore) and isinstance(body.value, ir.BufferLoad)


def _is_product(block: ir.Block) -> bool:
    """Whether the block computes C = C + x * y in floats."""
    value = block.body.value if isinstance(block.body, ir.BufferStore) else None
    return (
        isinstance(value, ir.Add)
        and isinstance(value.a, ir.BufferLoad)
        and isinstance(value.b, ir.Mul)
        and value.dtype.is_float
    )


def _divisor(p: Player, loop: LoopRV) -> int:
    """Number of iterations of the intrinsic; mostly a divisor of the loop's extent."""
    extent = ir.const_int(p.for_of(loop).extent)
    if extent is None or not p.likely(0.9):
        return p.chance.choice([2, 3, 4])
    fitting = [n for n in (1, 2, 3, 4, 5, 8) if extent % n == 0]
    return p.chance.choice(fitting[1:] or fitting)


def _tensorize_copy(p: Player) -> None:
    """Tensorize part of the last loop of an existing copy, or of one created for this."""
    result = [b for b in p.blocks() if _is_copy(p.node(b)) and p.sch.get_loops(b)]
    if result and p.likely(0.6):
        block = p.chance.choice(result)
    else:
        reader, at, _ = p.region("read")
        block = p.sch.cache_read(reader, at, "global")
        p.kept(block)
    *_, last = p.loops(block)
    _inner_part(p, last, "copy", p.node(block).writes[0].buffer.dtype)


def _inner_part(p: Player, loop: LoopRV, what: str, dtype: ir.DType) -> None:
    n = _divisor(p, loop)
    _, inner = p.sch.split(loop, [None, n])
    p.sch.tensorize(inner, f"random_{what}_{n}_{dtype}", p.chance.random() < 0.7)


def _update(p: Player) -> tuple[BlockRV, list[LoopRV]]:
    """Draw a dot-product update and its loops, after decomposing the reduction if needed."""
    block = p.block_where(_is_product)
    loops = p.loops(block)
    if p.node(block).init is not None:
        p.kept(p.sch.decompose_reduction(block, loops[0]))
    return block, p.sch.get_loops(block)


def _tensorize_dot(p: Player) -> None:
    block, loops = _update(p)
    _inner_part(p, loops[-1], "dot", p.node(block).writes[0].buffer.dtype)


def _tensorize_tile(p: Player) -> None:
    """Tensorize a register tile of a matrix product."""
    block, loops = _update(p)
    if len(loops) < 3:
        raise NothingToTry
    *_, i, j, k = loops
    rows, columns = _divisor(p, i), _divisor(p, j)
    i0, i1 = p.sch.split(i, [None, rows])
    j0, j1 = p.sch.split(j, [None, columns])
    p.kept(i0, i1, j0, j1)
    p.sch.reorder(i0, j0, k, i1, j1)
    dtype = str(p.node(block).writes[0].buffer.dtype)
    p.sch.tensorize(i1, outer_product_name(rows, columns, dtype))


def _tensorize(p: Player) -> None:
    """Tensorize mostly something that an intrinsic matches."""
    if not p.likely(0.9):
        p.sch.tensorize(p.loop(), "random_copy_4_float32")
        return
    moves = [_tensorize_copy]
    if any(_is_product(p.node(b)) for b in p.blocks()):
        moves = [_tensorize_dot, _tensorize_tile]
    p.chance.choice(moves)(p)


MOVES = {"tensorize": Move(_tensorize, reassociates=True)}
