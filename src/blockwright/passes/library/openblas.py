"""OpenBLAS, from the wheel `scipy-openblas32`: matrix products of float32 and float64.

    y = R.call_dps_library("openblas.gemm", (x, w), out_sinfo=…, alpha=1.0, beta=0.0, trans_b=False)

is alpha·x·w, or alpha·x·wᵀ with `trans_b`; with a third operand c of the result's shape, beta·c is
added. Leading axes of x are rows if w is a matrix; otherwise they equal those of w and are a batch.
Bias and activation stay in the compiled part.

OpenBLAS runs on one thread, and the program divides a product into blocks of rows or columns for
the threads of its own pool. OpenBLAS's own threads spin while they wait and know nothing of the
pool's, so both together ask for more processors than there are. With one pool, the number of
threads, affinity and quotas are those of the compiled part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.graph.pattern import (
    Match,
    Pattern,
    call_library,
    call_op,
    is_op,
    wildcard,
)
from blockwright.passes.library.calls import Emit, LibraryCall
from blockwright.runtime.shared_libraries import SharedLibrary

SHARED = SharedLibrary(
    "openblas",
    "scipy_openblas32/lib/libscipy_openblas.so",
    "scipy-openblas32",
    "0.3",
    "scipy_openblas_get_config",
    "scipy_openblas_set_num_threads",
)
_GEMM = {"float32": "scipy_cblas_sgemm", "float64": "scipy_cblas_dgemm"}
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
_TASK_FLOPS = 1 << 18
"""Fewest operations of a task: some 5 µs, five times what it costs to start a parallel loop."""
_BLOCK = 16
"""Rows or columns of a task are a multiple of this, the tile of OpenBLAS's kernels."""
_LARGEST = 2**31 - 1
_INDEX = ir.dtype_of("int64")


# --------------------------------------------------------------------------------------- function
def emit_gemm(call: LibraryCall) -> ir.Stmt:
    """Statements that compute `openblas.gemm`."""
    attrs = {"alpha": 1.0, "beta": 0.0, "trans_b": False}
    for name in call.attrs:
        if name not in attrs:
            raise call.error(f"has no attribute {name}", f"its attributes: {', '.join(attrs)}")
    attrs |= call.attrs
    _check(call, attrs)
    x, w, *_ = call.inputs
    (out,) = call.outputs
    if len(w.shape) == 2:
        batch, rows = [ir.const(1, "int64")], _product(x.shape[:-1])
    else:
        batch, rows = [_product(x.shape[:-2])], x.shape[-2]
    depth, columns = x.shape[-1], w.shape[-2 if attrs["trans_b"] else -1]
    shapes = [(*batch, rows, depth), (*batch, *w.shape[-2:]), (*batch, rows, columns)]
    shapes += [shapes[2]] * (len(call.inputs) - 2)

    def with_views(buffers: list[ir.Buffer], seen: list[ir.Buffer]) -> ir.Stmt:
        if not buffers:
            return _Product(call, attrs, seen).statement()
        shape = shapes[len(seen)]
        return call.view(buffers[0], shape, lambda view: with_views(buffers[1:], [*seen, view]))

    body = with_views([x, w, out, *call.inputs[2:]], [])
    return ir.seq([*_narrow_sizes(rows, depth, columns), body])


def _check(call: LibraryCall, attrs: dict[str, Any]) -> None:
    if len(call.inputs) not in (2, 3) or len(call.outputs) != 1:
        raise call.error("takes two or three tensors and has one result")
    x, w, *rest = call.inputs
    (out,) = call.outputs
    if out.dtype.name not in _GEMM or any(b.dtype is not out.dtype for b in call.inputs):
        raise call.error("takes tensors of float32, or of float64", "cast them first")
    rank, leading = len(x.shape), len(x.shape) - 2
    wrong = rank < 2 or len(w.shape) not in (2, rank) or len(out.shape) != rank
    if not wrong:
        inner = w.shape[-1 if attrs["trans_b"] else -2]
        columns = w.shape[-2 if attrs["trans_b"] else -1]
        pairs = [(x.shape[-1], inner), (out.shape[-1], columns)]
        pairs += zip(x.shape[:-1], out.shape[:-1], strict=True)
        pairs += zip(w.shape[:-2], x.shape[:leading], strict=False)
        pairs += [p for c in rest for p in zip(c.shape, out.shape, strict=False)]
        wrong = not all(ir.structural_equal(a, b) for a, b in pairs)
        wrong = wrong or any(len(c.shape) != rank for c in rest)
    if wrong:
        raise call.error(
            "the shapes of its tensors do not fit",
            "x: (…, m, k); w: (k, n), or (…, k, n) with the axes of x; the result: (…, m, n)",
        )
    if attrs["beta"] != 0 and not rest:
        raise call.error("beta needs a third tensor", "pass the tensor that beta multiplies")


def _narrow_sizes(*sizes: ir.Expr) -> list[ir.Stmt]:
    """Assertions that symbolic sizes fit the `int` of CBLAS."""
    return [
        ir.AssertStmt(
            ir.compare(ir.LE, size, ir.const(_LARGEST, "int64")),
            "BW708: a size of openblas.gemm is %d, and exceeds 32 bits",
            (size,),
        )
        for size in dict.fromkeys(sizes)
        if ir.const_int(size) is None
    ]


class _Product:
    """The loops around the calls of one product."""

    def __init__(self, call: LibraryCall, attrs: dict[str, Any], views: list[ir.Buffer]) -> None:
        self.call, self.attrs = call, attrs
        self.x, self.w, self.out, *self.rest = views
        self.batch, self.rows, self.columns = self.out.shape
        self.depth = self.x.shape[-1]
        self.threads = call.target.num_threads

    def statement(self) -> ir.Stmt:
        zero = ir.const(0, "int64")
        if not ir.is_const_int(self.batch, 1):
            item = ir.Var("item", _INDEX)
            body = self._gemm(item, zero, self.rows, zero, self.columns)
            return ir.For(item, zero, self.batch, ir.ForKind.PARALLEL, body)
        if self.threads == 1:
            return self._gemm(zero, zero, self.rows, zero, self.columns)
        tall = self.rows >= self.threads * _BLOCK
        known = ir.const_int(self.rows)
        if known is not None:
            return self._divided(by_rows=known >= self.threads * _BLOCK)
        return ir.IfThenElse(tall, self._divided(True), self._divided(False))

    def _divided(self, by_rows: bool) -> ir.Stmt:
        """A parallel loop over blocks of rows, or of columns."""
        whole, other = (self.rows, self.columns) if by_rows else (self.columns, self.rows)
        each = ir.mul(ir.mul(other, self.depth), 2)
        least = ir.add(ir.floordiv(ir.const(_TASK_FLOPS, "int64"), ir.maximum(each, 1)), 1)
        size = ir.maximum(ir.ceildiv(whole, self.threads), least)
        size = ir.mul(ir.ceildiv(size, _BLOCK), _BLOCK)
        task, begin, count, block = (
            ir.Var(name, _INDEX) for name in ("task", "begin", "count", "block")
        )
        zero = ir.const(0, "int64")
        if by_rows:
            gemm = self._gemm(zero, begin, count, zero, self.columns)
        else:
            gemm = self._gemm(zero, zero, self.rows, begin, count)
        rest = ir.minimum(block, ir.sub(whole, begin))
        body = ir.LetStmt(begin, ir.mul(task, block), ir.LetStmt(count, rest, gemm))
        tasks = ir.ceildiv(whole, size)
        return ir.LetStmt(block, size, ir.For(task, zero, tasks, ir.ForKind.PARALLEL, body))

    def _gemm(
        self, item: ir.Expr, row: ir.Expr, rows: ir.Expr, column: ir.Expr, columns: ir.Expr
    ) -> ir.Stmt:
        """A block of the result."""
        call, dtype, zero = self.call, self.out.dtype, ir.const(0, "int64")
        trans_b = bool(self.attrs["trans_b"])
        depth, width = self.depth, self.columns
        w_place = (item, column, zero) if trans_b else (item, zero, column)
        gemm = call.call(
            _GEMM[dtype.name],
            _ROW_MAJOR,
            _PLAIN,
            _TRANSPOSED if trans_b else _PLAIN,
            _int(rows),
            _int(columns),
            _int(depth),
            ir.const(float(self.attrs["alpha"]), dtype),
            call.address(self.x, item, row, zero),
            _stride(depth),
            call.address(self.w, *w_place),
            _stride(depth if trans_b else width),
            ir.const(float(self.attrs["beta"]), dtype),
            call.address(self.out, item, row, column),
            _stride(width),
        )
        steps: list[ir.Stmt] = [ir.Evaluate(gemm)]
        if self.rest and self.attrs["beta"] != 0:
            steps.insert(0, self._copied(item, row, rows, column, columns))
        return ir.seq(steps)

    def _copied(
        self, item: ir.Expr, row: ir.Expr, rows: ir.Expr, column: ir.Expr, columns: ir.Expr
    ) -> ir.Stmt:
        """Copy a block of the third operand to the result, to which the product is added."""
        i, j, zero = ir.Var("i", _INDEX), ir.Var("j", _INDEX), ir.const(0, "int64")
        place = (item, ir.add(row, i), ir.add(column, j))
        copy = ir.BufferStore(self.out, ir.BufferLoad(self.rest[0], place), place)
        inner = ir.For(j, zero, columns, ir.ForKind.SERIAL, copy)
        return ir.For(i, zero, rows, ir.ForKind.SERIAL, inner)


def _int(size: ir.Expr) -> ir.Expr:
    return ir.cast_to(size, ir.dtype_of("int32"))


def _stride(size: ir.Expr) -> ir.Expr:
    """A leading dimension, which CBLAS wants to be 1 at least."""
    return _int(ir.maximum(size, 1))


def _product(sizes: tuple[ir.Expr, ...]) -> ir.Expr:
    result: ir.Expr = ir.const(1, "int64")
    for size in sizes:
        result = size if ir.is_const_int(result, 1) else ir.mul(result, size)
    return result


OPENBLAS_FUNCTIONS: dict[str, Emit] = {"gemm": emit_gemm}


# --------------------------------------------------------------------------------------- patterns
_X, _W, _B = wildcard(), wildcard(), wildcard()


def _floats(pattern: Pattern) -> Pattern:
    return pattern.has_dtype(*_GEMM)


def _rank_at_least_2(value: ir.GraphExpr) -> bool:
    return isinstance(value.info, ir.TensorInfo) and value.info.rank >= 2


_ROWS = _floats(_X).where(_rank_at_least_2, "that its rank is 2 or more")
_MATRIX = _W.has_rank(2)


def _swaps(axes: Sequence[int] | None) -> bool:
    return axes is None or tuple(axes) == (1, 0)


_TURNED = is_op("permute_dims")(_W.has_rank(2)).has_attrs(axes=_swaps)


def _gemm_call(match: Match, trans_b: bool) -> ir.GraphExpr:
    out = match.root.tensor_info
    attrs = {"alpha": 1.0, "beta": 0.0, "trans_b": trans_b}
    return call_library("openblas.gemm", [match[_X], match[_W]], out, **attrs)


def _with_known_shape(pattern: Pattern) -> Pattern:
    return _floats(pattern).has_shape(...)


def _matmul(x: Pattern, w: Pattern) -> Pattern:
    return _with_known_shape(is_op("matmul")(x, w).has_attrs(out_dtype=None))


def _same_rank(rank: int) -> Pattern:
    """Batched products of this rank: the leading axes of both operands are proved equal."""
    batch = [f"batch{axis}" for axis in range(rank - 2)]
    x = _floats(_X).has_shape(*batch, None, None)
    return _matmul(x, _W.has_shape(*batch, None, None))


OPENBLAS_PATTERNS: tuple[tuple[str, Pattern, Callable[[Match], ir.GraphExpr | None]], ...] = (
    ("matmul_transposed", _matmul(_ROWS, _TURNED), lambda m: _gemm_call(m, True)),
    ("matmul", _matmul(_ROWS, _MATRIX), lambda m: _gemm_call(m, False)),
    ("linear", _with_known_shape(is_op("linear")(_ROWS, _W)), lambda m: _gemm_call(m, True)),
    (
        "linear_bias",
        _with_known_shape(is_op("linear")(_ROWS, _W, _B)),
        lambda m: call_op("add", _gemm_call(m, True), m[_B]),
    ),
    ("batched_matmul", _same_rank(3) | _same_rank(4), lambda m: _gemm_call(m, False)),
)
"""Rows of `LibraryPattern`. Each pattern object stands for one value, so `_X` is shared by all."""
