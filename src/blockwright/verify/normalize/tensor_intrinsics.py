"""Replace the implementations of proved tensor intrinsics by their meaning.

`tensorize` puts the implementation of an intrinsic on views of the tile's operands. Where such a
block is found, and the intrinsic is proved (`verify.intrinsics`), the loops of the meaning stand
for it: a schedule then needs no proof of what the implementation does, which may be beyond the
instance sets. Blocks are recognized by their content, so nothing depends on how a program came
about; a block that a later step has changed is left as it is.
"""

from __future__ import annotations

from typing import Any

from blockwright import ir
from blockwright.intrin import TensorIntrin
from blockwright.support import IRError


def with_meanings(func: ir.PrimFunc) -> ir.PrimFunc:
    """The program with the meaning of each proved intrinsic; the same object if there is none."""
    if not any(block.match_buffers for block in ir.blocks(func.body)):
        return func
    body = _Expand()(func.body)
    return func if body is func.body else func.replace(body=body)


class _Expand(ir.Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[tuple[Any, ...], list[TensorIntrin]] = {}
        for intrin in TensorIntrin.known():
            key = _key(intrin.meaning.buffers)
            self.known.setdefault(key, []).append(intrin)

    def __call__(self, node: Any) -> Any:
        """Visit statements only: expressions contain no blocks."""
        return super().__call__(node) if isinstance(node, ir.Stmt) else node

    def rewrite_Block(self, node: ir.Block) -> ir.Stmt:
        views = [match.buffer for match in node.match_buffers]
        for count in range(len(views), 0, -1):
            operands = views[len(views) - count :]
            for intrin in self.known.get(_key(operands), ()):
                if _usable(node, intrin) and _is_placed(node, intrin, operands):
                    return _replaced(node, intrin, operands)
        return self.descend(node)


def _key(buffers: Any) -> tuple[Any, ...]:
    """Types and shapes of operands, by which intrinsics are looked up."""
    return tuple((b.dtype, *(ir.const_int(n) for n in b.shape)) for b in buffers)


def _usable(block: ir.Block, intrin: TensorIntrin) -> bool:
    """Whether the meaning accesses what the implementation may access, and no more.

    The proof takes operands as separate, initialized memory. The tile's operands are separate if
    they are views of different buffers; the meaning reads and writes all of its operands, so
    nothing that the implementation accesses is missing from it.
    """
    sources = [match.source.buffer for match in block.match_buffers]
    root = intrin.implementation.root
    loops = ir.loops(root.body)
    return (
        len(set(sources)) == len(sources)
        and not root.exec_scope
        and not any(loop.kind is ir.ForKind.THREAD_BINDING for loop in loops)
        and _is_whole(intrin.meaning)
    )


def _is_whole(meaning: ir.PrimFunc) -> bool:
    """Whether the meaning accesses every element of every operand, as its signature shows."""
    (block,) = ir.blocks(meaning.root.body)
    extents = {it.var: ir.const_int(it.dom.extent) for it in block.iter_vars}
    whole = {
        access.buffer
        for access in ir.accesses(block.body)
        if len(set(access.indices)) == len(access.indices)
        and all(
            isinstance(k, ir.Var) and extents.get(k) is not None and extents[k] == ir.const_int(n)
            for k, n in zip(access.indices, access.buffer.shape, strict=True)
        )
    }
    return whole >= set(meaning.buffers)


def _is_placed(block: ir.Block, intrin: TensorIntrin, operands: list[ir.Buffer]) -> bool:
    """Whether the block's body is the proved implementation on these operands."""
    root = intrin.implementation.root
    own = block.alloc_buffers[len(block.alloc_buffers) - len(root.alloc_buffers) :]
    body = ir.substitute(root.body, dict(zip(intrin.implementation.buffers, operands, strict=True)))
    placed = ir.Block("", (), (), (), body, alloc_buffers=root.alloc_buffers)
    found = ir.Block("", (), (), (), block.body, alloc_buffers=own)
    return ir.structural_equal(placed, found) and _is_proved(intrin)


def _is_proved(intrin: TensorIntrin) -> bool:
    try:
        return bool(intrin.verdict)
    except IRError:  # of a family, and wrong: the programs are compared as they are
        return False


def _replaced(block: ir.Block, intrin: TensorIntrin, operands: list[ir.Buffer]) -> ir.Block:
    """The block with the meaning in place of the implementation, in fresh variables."""
    root = intrin.meaning.root
    defined = [loop.loop_var for loop in ir.loops(root.body)]
    defined += [it.var for inner in ir.blocks(root.body) for it in inner.iter_vars]
    fresh: dict[Any, ir.Node] = {v: ir.Var(v.name, v.type) for v in defined}
    fresh.update(zip(intrin.meaning.buffers, operands, strict=True))
    kept = len(block.alloc_buffers) - len(intrin.implementation.root.alloc_buffers)
    return block.replace(
        body=ir.substitute(root.body, fresh), alloc_buffers=block.alloc_buffers[:kept]
    )
