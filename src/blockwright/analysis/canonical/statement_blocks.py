"""Wrap stores outside of blocks in blocks, so that block analyses include them.

Before:  for i in range(4): Y[i] = Y[i] + X[i]
After:   for i in range(4): with T.block("Y"): vi = T.axis.spatial(4, i); Y[vi] = Y[vi] + X[vi]

A loop whose variable is an index of the store drives a spatial iterator, because each iteration
stores a different element. All other enclosing loops drive reduction iterators.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.analysis.access.regions import block_access_regions
from blockwright.analysis.access.tree import is_jump


def with_root(func: ir.PrimFunc) -> ir.PrimFunc:
    """Wrap the body of a program in a root block, unless it has one."""
    if isinstance(func.body, ir.BlockRealize):
        return func
    root = ir.Block("root", (), (), (), func.body)
    return func.replace(body=ir.BlockRealize((), ir.const(True, "bool"), root))


def with_statement_blocks(func: ir.PrimFunc) -> ir.PrimFunc:
    """Wrap every store directly in the root block in its own block.

    For analysis only. A program with `while`, `break` or `continue` outside of blocks is returned
    unchanged, because it is unknown which of its statements run.
    """
    func = with_root(func)
    body = func.root.body
    outside = _Outside()
    outside(body)
    if outside.irregular:
        return func
    return func.replace(body=func.body.map_children(_Wrapped()))


class _Outside(ir.Mutator):
    """Looks for control flow outside of blocks that decides whether other statements run."""

    irregular = False

    def rewrite_BlockRealize(self, node: ir.BlockRealize) -> ir.BlockRealize:
        return node

    def rewrite_While(self, node: ir.While) -> ir.While:
        self.irregular = True
        return node

    def rewrite_Call(self, node: ir.Call) -> ir.Call:
        self.irregular |= is_jump(node)
        return node


class _Wrapped(ir.Mutator):
    def __init__(self) -> None:
        super().__init__()
        self.root = True
        self.loops: list[ir.For] = []

    def rewrite_Block(self, node: ir.Block) -> ir.Block:
        if not self.root:
            return node
        self.root = False
        return node.replace(body=self(node.body))

    def rewrite_For(self, node: ir.For) -> ir.For:
        self.loops.append(node)
        body = self(node.body)
        self.loops.pop()
        return node if body is node.body else node.replace(body=body)

    def rewrite_BufferStore(self, node: ir.BufferStore) -> ir.Stmt:
        return self._block(node, node.buffer.name, node.indices)

    def rewrite_Evaluate(self, node: ir.Evaluate) -> ir.Stmt:
        place = ir.atomic_place(node.value) if ir.is_atomic(node.value) else None
        return node if place is None else self._block(node, place.buffer.name, place.indices)

    def _block(self, stmt: ir.Stmt, name: str, indices: tuple[ir.Expr, ...]) -> ir.Stmt:
        renamed: dict[ir.Node, ir.Node] = {}
        iters: list[ir.IterVar] = []
        for loop in self.loops:
            var = ir.Var(f"v{loop.loop_var.name}", loop.loop_var.type)
            spatial = any(index is loop.loop_var for index in indices)
            kind = ir.IterType.SPATIAL if spatial else ir.IterType.REDUCE
            iters.append(ir.IterVar(var, ir.substitute(loop.dom, renamed), kind))
            renamed[loop.loop_var] = var
        block = ir.Block(name, tuple(iters), (), (), ir.substitute(stmt, renamed))
        reads, writes = block_access_regions(block)
        block = block.replace(reads=reads, writes=writes)
        values = tuple(loop.loop_var for loop in self.loops)
        return ir.BlockRealize(values, ir.const(True, "bool"), block)
