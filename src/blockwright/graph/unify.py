"""Match annotations: bind the symbols of a signature to the dimensions of the arguments.

Calling `f(x: Tensor((n, 4))) -> Tensor((n * 4,))` with a `Tensor((k + 1, 4))` binds n to k + 1 and
returns `Tensor(((k + 1) * 4,))`. A symbol is bound by the first dimension that consists of it
alone; all other dimensions must be provably equal. If an argument is known less precisely than the
signature, the result is known only by rank, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from blockwright import ir
from blockwright.arith import Analyzer
from blockwright.graph.relate import differ, implied, info_text, instance
from blockwright.ops.row import dims_text
from blockwright.support import GraphError


class SymbolBinding:
    """The symbols bound so far, and what is still to be compared.

    Args:
        outer: symbols of enclosing functions, which are not rebound.
        scope: symbols of the caller; others in the signature of a function that it passes stand
            for all sizes.
    """

    def __init__(
        self,
        analyzer: Analyzer,
        where: str,
        outer: Iterable[ir.Var] = (),
        scope: Collection[ir.Var] = (),
    ) -> None:
        self.symbols: dict[ir.Var, ir.Expr] = {v: v for v in outer}
        self.analyzer = analyzer
        self.where = where
        self.scope = scope
        self._later: list[tuple[ir.Expr, ir.Expr]] = []
        self._functions: list[tuple[ir.CallableInfo, ir.Info]] = []

    def match(self, param: ir.Info, arg: ir.Info | None) -> None:
        """Bind the symbols of `param` from `arg`. Raises: GraphError BW402 on a mismatch."""
        if isinstance(param, ir.TensorInfo):
            self._tensor(param, arg)
        elif isinstance(param, ir.ShapeInfo):
            self._shape(param, arg)
        elif isinstance(param, ir.TupleInfo):
            self._tuple(param, arg)
        elif isinstance(param, ir.PrimInfo):
            self._prim(param, arg)
        elif isinstance(param, ir.CallableInfo) and not _unknown(arg):
            assert arg is not None
            self._functions.append((param, arg))

    def _tensor(self, param: ir.TensorInfo, arg: ir.Info | None) -> None:
        if _unknown(arg):
            return
        if not isinstance(arg, ir.TensorInfo):
            raise self._error(f"expected a tensor, got {info_text(arg)}")
        if param.dtype is not None and arg.dtype is not None and param.dtype is not arg.dtype:
            raise self._error(f"expected {param.dtype}, got {arg.dtype}")
        if param.rank >= 0 and arg.rank >= 0 and param.rank != arg.rank:
            raise self._error(f"expected rank {param.rank}, got rank {arg.rank}")
        if param.device and arg.device and param.device != arg.device:
            raise self._error(f"expected a tensor on {param.device}, got one on {arg.device}")
        if param.shape is not None:
            self._dims(param.shape, arg.shape)

    def _shape(self, param: ir.ShapeInfo, arg: ir.Info | None) -> None:
        if _unknown(arg):
            return
        if not isinstance(arg, ir.ShapeInfo):
            raise self._error(f"expected a shape, got {info_text(arg)}")
        wanted = param.ndim if param.values is None else len(param.values)
        count = arg.ndim if arg.values is None else len(arg.values)
        if -1 not in (wanted, count) and wanted != count:
            raise self._error(f"expected {wanted} dimensions, got {count}")
        if param.values is not None:
            self._dims(param.values, arg.values)

    def _prim(self, param: ir.PrimInfo, arg: ir.Info | None) -> None:
        if _unknown(arg):
            return
        if not isinstance(arg, ir.PrimInfo):
            raise self._error(f"expected a scalar, got {info_text(arg)}")
        if param.dtype is not arg.dtype:
            raise self._error(f"expected {param.dtype}, got {arg.dtype}")
        if param.value is not None and arg.value is not None:
            self._dims((param.value,), (arg.value,))

    def _tuple(self, param: ir.TupleInfo, arg: ir.Info | None) -> None:
        if _unknown(arg):
            return
        if not isinstance(arg, ir.TupleInfo):
            raise self._error(f"expected a tuple, got {info_text(arg)}")
        if len(arg.fields) != len(param.fields):
            raise self._error(f"expected {len(param.fields)} fields, got {len(arg.fields)}")
        for p, a in zip(param.fields, arg.fields, strict=True):
            self.match(p, a)

    def _dims(self, dims: tuple[ir.Expr, ...], values: tuple[ir.Expr, ...] | None) -> None:
        """Bind symbols that are a whole dimension; other dimensions are compared by `check`."""
        for dim, value in zip(dims, values or (), strict=values is not None):
            if isinstance(dim, ir.Var) and dim not in self.symbols:
                self.symbols[dim] = value
            else:
                self._later.append((dim, value))

    def check(self) -> None:
        """Compare the remaining dimensions, and functions.

        Raises: GraphError BW402 for dimensions that are not provably equal, or a function that
            cannot be used as its parameter.
        """
        later, self._later = self._later, []
        for dim, value in later:
            if any(v not in self.symbols for v in ir.free_vars(dim)):
                continue  # it has a symbol that no argument determines
            expected = self.analyzer.simplify(ir.substitute(dim, self.symbols))
            if self.analyzer.prove_equal(expected, value):
                continue
            verb = "cannot be" if differ(expected, value, self.analyzer) else "is not known to be"
            raise self._error(
                f"dimension {dims_text(value)} {verb} {dims_text(expected)}",
                None if verb == "cannot be" else "match_cast the argument to the shape it has",
            )
        functions, self._functions = self._functions, []
        for param, arg in functions:
            wanted = self.renamed(param)
            if not implied(wanted, instance(arg, wanted, self.scope), self.analyzer):
                raise self._error(f"expected {info_text(wanted)}, got {info_text(arg)}")

    def result(self, info: ir.Info) -> ir.Info:
        """`info` in the caller's symbols; less precise where a symbol is unknown."""
        self.check()
        return self.renamed(info)

    def renamed(self, info: ir.Info) -> ir.Info:
        """Replace the bound symbols of an annotation; sizes with unbound symbols become unknown."""
        if isinstance(info, ir.TupleInfo):
            return ir.TupleInfo(tuple(self.renamed(f) for f in info.fields))
        if isinstance(info, ir.TensorInfo) and info.shape is not None:
            if self._mentions_unknown(info.shape):
                return ir.TensorInfo(None, info.dtype, info.rank, info.device)
            return info.replace(shape=self._substituted(info.shape))
        if isinstance(info, ir.ShapeInfo) and info.values is not None:
            if self._mentions_unknown(info.values):
                return ir.ShapeInfo(None, len(info.values))
            return info.replace(values=self._substituted(info.values))
        if isinstance(info, ir.PrimInfo) and info.value is not None:
            if self._mentions_unknown((info.value,)):
                return ir.PrimInfo(info.dtype)
            return info.replace(value=self._substituted((info.value,))[0])
        if isinstance(info, ir.CallableInfo):  # symbols that are not bound here are its own
            known = {k: v for k, v in self.symbols.items() if k is not v}
            return ir.substitute(info, known) if known else info
        return info

    def _substituted(self, dims: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(self.analyzer.simplify(ir.substitute(d, self.symbols)) for d in dims)

    def _mentions_unknown(self, dims: tuple[ir.Expr, ...]) -> bool:
        """Whether a dimension has an unbound symbol, which is internal to the callee."""
        return any(v not in self.symbols for d in dims for v in ir.free_vars(d))

    def _error(self, message: str, help: str | None = None) -> GraphError:
        return GraphError(f"{self.where}: {message}", code="BW402", help=help)


def _unknown(info: ir.Info | None) -> bool:
    return info is None or isinstance(info, ir.ObjectInfo)
