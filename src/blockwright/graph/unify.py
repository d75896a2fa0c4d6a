"""Matching annotations: which symbols of a signature take which dimensions of the arguments.

Calling `f(x: Tensor((n, 4))) -> Tensor((n * 4,))` with a `Tensor((k + 1, 4))` binds n to k + 1 and
gives `Tensor(((k + 1) * 4,))`. Where an argument is known less precisely than the signature, the
result is known only by rank (or not at all): coarser, never wrong.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.ops.row import dims_text
from blockwright.support import GraphError


class Binding:
    """Symbols bound so far, and whether something could not be bound."""

    def __init__(self, analyzer: Analyzer, where: str) -> None:
        self.symbols: dict[ir.Var, ir.Expr] = {}
        self.unknown: set[ir.Var] = set()
        self.analyzer = analyzer
        self.where = where

    def match(self, param: ir.Info, arg: ir.Info | None) -> None:
        """Bind the symbols of `param` from `arg`; raises when they cannot agree."""
        if isinstance(param, ir.TensorInfo):
            self._tensor(param, arg)
        elif isinstance(param, ir.ShapeInfo):
            self._shape(param, arg)
        elif isinstance(param, ir.TupleInfo):
            self._tuple(param, arg)
        elif isinstance(param, ir.PrimInfo) and isinstance(param.value, ir.Var):
            known = arg.value if isinstance(arg, ir.PrimInfo) else None
            self._dims((param.value,), (known,) if known is not None else None)

    def _tensor(self, param: ir.TensorInfo, arg: ir.Info | None) -> None:
        if isinstance(arg, ir.ObjectInfo) or arg is None:
            self._dims(param.shape or (), None)
            return
        if not isinstance(arg, ir.TensorInfo):
            raise self._error(f"expected a tensor, got {arg!r}")
        if param.dtype is not None and arg.dtype is not None and param.dtype is not arg.dtype:
            raise self._error(f"expected {param.dtype}, got {arg.dtype}")
        if param.rank >= 0 and arg.rank >= 0 and param.rank != arg.rank:
            raise self._error(f"expected rank {param.rank}, got rank {arg.rank}")
        if param.shape is not None:
            self._dims(param.shape, arg.shape)

    def _shape(self, param: ir.ShapeInfo, arg: ir.Info | None) -> None:
        if arg is not None and not isinstance(arg, (ir.ShapeInfo, ir.ObjectInfo)):
            raise self._error(f"expected a shape, got {arg!r}")
        values = arg.values if isinstance(arg, ir.ShapeInfo) else None
        if param.values is not None:
            if values is not None and len(values) != len(param.values):
                raise self._error(f"expected {len(param.values)} dimensions, got {len(values)}")
            self._dims(param.values, values)

    def _tuple(self, param: ir.TupleInfo, arg: ir.Info | None) -> None:
        if isinstance(arg, ir.TupleInfo):
            if len(arg.fields) != len(param.fields):
                raise self._error(f"expected {len(param.fields)} fields, got {len(arg.fields)}")
            for p, a in zip(param.fields, arg.fields, strict=True):
                self.match(p, a)
        elif arg is None or isinstance(arg, ir.ObjectInfo):
            for p in param.fields:
                self.match(p, None)
        else:
            raise self._error(f"expected a tuple, got {arg!r}")

    def _dims(self, dims: tuple[ir.Expr, ...], values: tuple[ir.Expr, ...] | None) -> None:
        if values is None:
            self.unknown.update(v for d in dims for v in ir.free_vars(d) if v not in self.symbols)
            return
        later: list[tuple[ir.Expr, ir.Expr]] = []
        for dim, value in zip(dims, values, strict=True):
            if isinstance(dim, ir.Var) and dim not in self.symbols:
                self.symbols[dim] = value
                self.unknown.discard(dim)
            else:
                later.append((dim, value))
        for dim, value in later:
            expected = self.analyzer.simplify(ir.substitute(dim, self.symbols))
            both = self.analyzer.const_bounds(ir.sub(expected, value))
            if both[0] is not None and both[0] == both[1] and both[0] != 0:
                raise self._error(f"dimension {dims_text(value)} cannot be {dims_text(expected)}")

    def result(self, info: ir.Info) -> ir.Info:
        """`info` in the caller's symbols; coarser where a symbol stayed unknown."""
        if isinstance(info, ir.TupleInfo):
            return ir.TupleInfo(tuple(self.result(f) for f in info.fields))
        if isinstance(info, ir.TensorInfo) and info.shape is not None:
            if self._mentions_unknown(info.shape):
                return ir.TensorInfo(None, info.dtype, info.rank, info.device)
            return info.replace(shape=self._substituted(info.shape))
        if isinstance(info, ir.ShapeInfo) and info.values is not None:
            if self._mentions_unknown(info.values):
                return ir.ShapeInfo(None, len(info.values))
            return info.replace(values=self._substituted(info.values))
        return info

    def _substituted(self, dims: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(self.analyzer.simplify(ir.substitute(d, self.symbols)) for d in dims)

    def _mentions_unknown(self, dims: tuple[ir.Expr, ...]) -> bool:
        """A symbol bound nowhere in the parameters is the callee's own: unknown to the caller."""
        return any(v not in self.symbols for d in dims for v in ir.free_vars(d))

    def _error(self, message: str) -> GraphError:
        return GraphError(f"{self.where}: {message}", code="BW402")
