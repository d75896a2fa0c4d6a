"""Printer of graph-level annotations."""

from __future__ import annotations

from collections.abc import Iterable

from blockwright.ir import graph as G
from blockwright.ir.dtype import INT64
from blockwright.ir.expr import Expr, IntImm, Var
from blockwright.ir.node import Node
from blockwright.ir.printer.expr import quote
from blockwright.ir.printer.func import FuncPrinter


class InfoPrinter(FuncPrinter):
    """Prints annotations; quoted in signatures, where symbols are not Python names yet."""

    def dim(self, node: Expr, quoted: bool = False) -> str:
        text = self.like(node, INT64)
        return quote(text) if quoted and not isinstance(node, IntImm) else text

    def dims(self, nodes: Iterable[Expr], quoted: bool = False) -> str:
        return ", ".join(self.dim(node, quoted) for node in nodes)

    def info(self, info: G.Info, quoted: bool = False) -> str:
        """An annotation such as `R.Tensor((n, 4), "float32")`."""
        if isinstance(info, G.TensorInfo):
            return self._tensor(info, quoted)
        if isinstance(info, G.ShapeInfo):
            parts = [] if info.values is None else [f"[{self.dims(info.values, quoted)}]"]
            if info.ndim != -1:
                parts.append(f"ndim={info.ndim}")
            return f"R.Shape({', '.join(parts)})"
        if isinstance(info, G.PrimInfo):
            if info.value is None:
                return f'R.Prim("{info.dtype}")'
            return f"R.Prim(value={self.dim(info.value, quoted)})"
        if isinstance(info, G.TupleInfo):
            return f"R.Tuple({', '.join(self.info(f, quoted) for f in info.fields)})"
        if isinstance(info, G.CallableInfo):
            return self._callable(info, quoted)
        return "R.Object"

    def _tensor(self, info: G.TensorInfo, quoted: bool) -> str:
        parts: list[str] = []
        if info.shape is not None:
            comma = "," if len(info.shape) == 1 else ""
            parts.append(f"({self.dims(info.shape, quoted)}{comma})")
        if info.dtype is not None:
            parts.append(f'"{info.dtype}"' if parts else f'dtype="{info.dtype}"')
        if info.ndim != -1:
            parts.append(f"ndim={info.ndim}")
        if info.device:
            parts.append(f"device={quote(info.device)}")
        return f"R.Tensor({', '.join(parts)})"

    def _callable(self, info: G.CallableInfo, quoted: bool) -> str:
        parts: list[str] = []
        if info.params is not None:
            fields = [self.info(p, quoted) for p in info.params]
            comma = "," if len(fields) == 1 else ""
            parts.append(f"({', '.join(fields)}{comma})")
        parts.append(f"{'' if parts else 'ret='}{self.info(info.ret, quoted)}")
        if not info.pure:
            parts.append("pure=False")
        return f"R.Callable({', '.join(parts)})"

    def declare_symbols(self, *nodes: G.Info | G.GraphExpr | None) -> None:
        """Declare the symbols that these nodes mention for the first time."""
        for node in nodes:
            for var in _spelled_symbols(node):
                if not self.names.known(var):
                    self.out.line(f"{self.names.define(var, var.name)} = T.{var.type}()")


def _spelled_symbols(root: G.Info | G.GraphExpr | None) -> list[Var]:
    """Symbols printed in the text of a node; annotations of its variables are not printed."""
    out: list[Var] = []
    stack: list[Node] = [] if root is None else [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Var):
            out.append(node)
        elif isinstance(node, (G.If, G.GraphFunction, G.GraphVar)):
            continue
        elif isinstance(node, G.GraphExpr):
            stack += node.replace(info=None).children()[::-1]
        else:
            stack += node.children()[::-1]
    return out
