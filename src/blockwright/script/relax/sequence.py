"""Binding blocks of a body, of a branch or of a local function, while they are parsed."""

from __future__ import annotations

from blockwright import ir
from blockwright.ir import GraphExpr


class Sequence:
    """Binding blocks under construction."""

    def __init__(self) -> None:
        self.blocks: list[ir.BindingBlock] = []
        self.bindings: list[ir.Binding] = []
        self.result: GraphExpr | None = None

    def close(self, dataflow: bool) -> None:
        """End the current block; only a dataflow block may be empty."""
        if self.bindings or dataflow:
            self.blocks.append(ir.BindingBlock(tuple(self.bindings), dataflow))
        self.bindings = []

    def finish(self, body: GraphExpr) -> ir.SeqExpr:
        self.close(dataflow=False)
        return ir.SeqExpr(tuple(self.blocks), body)
