"""Winograd convolution F(m×m, 3×3): filter, input and output transforms, and a batched product.

    U[i, j, ci, co] = (G g Gᵀ)[i, j]          of the filters g, once for constant weights
    V[i, j, p, ci]  = (Bᵀ d B)[i, j]          of the (m+2)² inputs d of tile p
    M[i, j, p, co]  = Σ over ci of V[i, j, p, ci] · U[i, j, ci, co]
    Y[p, i, j, co]  = (Aᵀ M A)[i, j]          the m² results of tile p
    out[n, h, w, co] = Y[tile of (n, h, w), h mod m, w mod m, co]

Each transform is one pass over columns and one over rows, written as sums with common
subexpressions. (m+2)² multiplications replace 9·m²: 16 instead of 36 for m = 2, 36 instead of 144
for m = 4. The filter transform is computed in float64 and rounded once. If m does not divide the
result size, the last tiles extend beyond the result; the excess is computed from zeros and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from blockwright import ir
from blockwright.ops.common import ZERO, as_dim, bordered, widen
from blockwright.ops.winograd_transforms import Matrix, Sums, transforms
from blockwright.script.compute import Program, Tensor

TAPS = 3
TileSize = Literal[2, 4, 6]
"""Supported edges of output tiles."""

_FLOAT64 = ir.dtype_of("float64")


class _Line:
    """One product of a transform with a vector: let-bound intermediate values, and results."""

    def __init__(self, matrix: Matrix, vector: Sequence[ir.Expr], dtype: ir.DType) -> None:
        self.named: list[tuple[ir.Var, ir.Expr]] = []
        self._dtype = dtype
        sums = Sums(matrix, lambda c: ir.const(float(c), dtype), self._name)
        self.results: list[ir.Expr] = sums([self._name(ir.cast_to(v, dtype)) for v in vector])

    def _name(self, value: Any) -> ir.Expr:
        if isinstance(value, ir.Var):
            return value
        var = ir.Var(f"s{len(self.named)}", self._dtype)
        self.named.append((var, value))
        return var


def _floor(value: ir.Expr, size: int) -> ir.Expr:
    return ir.floordiv(value, as_dim(size))


class _Tiles:
    """The tiling of the result into m×m tiles. All tiles of a batch share one axis."""

    def __init__(self, batch: ir.Expr, height: ir.Expr, width: ir.Expr, m: int) -> None:
        self.m = m
        self.rows = _floor(ir.add(height, as_dim(m - 1)), m)
        self.columns = _floor(ir.add(width, as_dim(m - 1)), m)
        self.count = ir.mul(ir.mul(batch, self.rows), self.columns)

    def at(self, p: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr]:
        """Image, tile row and tile column of tile p."""
        line = ir.floordiv(p, self.columns)
        return (
            ir.floordiv(line, self.rows),
            ir.floormod(line, self.rows),
            ir.floormod(p, self.columns),
        )

    def of(self, n: ir.Expr, h: ir.Expr, w: ir.Expr) -> ir.Expr:
        """The tile that contains result (n, h, w)."""
        line = ir.add(ir.mul(n, self.rows), _floor(h, self.m))
        return ir.add(ir.mul(line, self.columns), _floor(w, self.m))


def winograd(
    program: Program,
    m: int,
    x: Tensor,
    weight: Tensor,
    layouts: tuple[str, str, str],
    padding: Sequence[tuple[int, int]],
    dtype: ir.DType,
) -> Tensor:
    """Add the blocks of a 3×3 convolution with stride 1.

    Args:
        m: edge of an output tile, one of `TileSize`.
        layouts: of input, kernel and result.
        padding: before and after the two spatial axes.
        dtype: element type of the result.
    """
    data, kernel, out = layouts
    size = dict(zip(data, x.shape, strict=True))
    filters = dict(zip(kernel, weight.shape, strict=True))["O"]
    height, width = (
        ir.add(size[letter], as_dim(low + high - TAPS + 1))
        for letter, (low, high) in zip("HW", padding, strict=True)
    )
    tiles = _Tiles(size["N"], height, width, m)
    padded = _padded(program, x, data, padding, tiles)
    u = _filters(program, m, weight, kernel, (size["C"], filters), padded.dtype)
    v = _inputs(program, m, padded, tiles, size["C"])
    edge = as_dim(m + TAPS - 1)

    def term(i: Any, j: Any, p: Any, co: Any, ci: Any) -> Any:
        return v[i, j, p, ci] * u[i, j, ci, co]

    product = program.reduce(
        "product",
        (edge, edge, tiles.count, filters),
        (size["C"],),
        term,
        "sum",
        padded.dtype,
        axes=("i", "j", "p", "co", "ci"),
    )
    y = _results(program, m, product, tiles, filters)
    extent = {"N": size["N"], "C": filters, "H": height, "W": width}

    def element(*index: Any) -> ir.Expr:
        at = dict(zip(out, index, strict=True))
        inner = (ir.floormod(at[letter], as_dim(m)) for letter in "HW")
        return ir.cast_to(y[(tiles.of(at["N"], at["H"], at["W"]), *inner, at["C"])], dtype)

    shape = [extent[letter] for letter in out]
    return program.compute("out", shape, element, axes=[letter.lower() for letter in out])


def _padded(
    program: Program, x: Tensor, data: str, padding: Sequence[tuple[int, int]], tiles: _Tiles
) -> Tensor:
    """The input in channels-last layout, zero-padded to the extent of the tiles.

    Half-precision elements are widened to float32, in which all transforms compute.
    """
    size = dict(zip(data, x.shape, strict=True))
    reach = {
        "H": ir.add(ir.mul(tiles.rows, as_dim(tiles.m)), as_dim(TAPS - 1)),
        "W": ir.add(ir.mul(tiles.columns, as_dim(tiles.m)), as_dim(TAPS - 1)),
    }
    before = {"H": padding[0][0], "W": padding[1][0]}
    low = [as_dim(before.get(letter, 0)) for letter in data]
    high = [
        ZERO
        if letter not in reach
        else ir.sub(reach[letter], ir.add(size[letter], as_dim(before[letter])))
        for letter in data
    ]
    shape = [reach.get(letter, size[letter]) for letter in "NHWC"]
    width = [(a, b) for a, b in zip(low, high, strict=True)]

    def element(*index: Any) -> ir.Expr:
        at = dict(zip("NHWC", index, strict=True))
        value = bordered(x, [at[letter] for letter in data], width, ir.const(0, x.dtype))
        return widen(value)

    return program.compute("padded", shape, element, axes=tuple("nhwc"))


def _filters(
    program: Program,
    m: int,
    weight: Tensor,
    kernel: str,
    channels: tuple[ir.Expr, ir.Expr],
    dtype: ir.DType,
) -> Tensor:
    matrix, edge = transforms(m, TAPS).filter, m + TAPS - 1

    def columns(kw: Any, ci: Any, co: Any) -> Any:
        at = {"W": kw, "I": ci, "O": co}
        line = _Line(
            matrix,
            [weight[tuple({**at, "H": as_dim(k)}[s] for s in kernel)] for k in range(TAPS)],
            _FLOAT64,
        )
        return line.named, [((i, kw, ci, co), v) for i, v in enumerate(line.results)]

    half = program.compute_several(
        "filter_columns",
        (edge, TAPS, *channels),
        (TAPS, *channels),
        columns,
        _FLOAT64,
        axes=("kw", "ci", "co"),
    )

    def rows(i: Any, ci: Any, co: Any) -> Any:
        line = _Line(matrix, [half[i, as_dim(k), ci, co] for k in range(TAPS)], _FLOAT64)
        return line.named, [((i, j, ci, co), v) for j, v in enumerate(line.results)]

    return program.compute_several(
        "filters",
        (edge, edge, *channels),
        (edge, *channels),
        rows,
        dtype,
        axes=("i", "ci", "co"),
    )


def _inputs(program: Program, m: int, x: Tensor, tiles: _Tiles, channels: ir.Expr) -> Tensor:
    matrix, edge = transforms(m, TAPS).input, m + TAPS - 1

    def columns(p: Any, j: Any, ci: Any) -> Any:
        n, row, column = tiles.at(p)
        top, left = ir.mul(row, as_dim(m)), ir.add(ir.mul(column, as_dim(m)), j)
        line = _Line(matrix, [x[n, ir.add(top, as_dim(k)), left, ci] for k in range(edge)], x.dtype)
        return line.named, [((p, i, j, ci), v) for i, v in enumerate(line.results)]

    half = program.compute_several(
        "input_columns",
        (tiles.count, edge, edge, channels),
        (tiles.count, edge, channels),
        columns,
        x.dtype,
        axes=("p", "j", "ci"),
    )

    def rows(p: Any, i: Any, ci: Any) -> Any:
        line = _Line(matrix, [half[p, i, as_dim(k), ci] for k in range(edge)], x.dtype)
        return line.named, [((i, j, p, ci), v) for j, v in enumerate(line.results)]

    return program.compute_several(
        "inputs",
        (edge, edge, tiles.count, channels),
        (tiles.count, edge, channels),
        rows,
        x.dtype,
        axes=("p", "i", "ci"),
    )


def _results(program: Program, m: int, x: Tensor, tiles: _Tiles, filters: ir.Expr) -> Tensor:
    matrix, edge = transforms(m, TAPS).output, m + TAPS - 1

    def columns(p: Any, j: Any, co: Any) -> Any:
        line = _Line(matrix, [x[as_dim(k), j, p, co] for k in range(edge)], x.dtype)
        return line.named, [((p, i, j, co), v) for i, v in enumerate(line.results)]

    half = program.compute_several(
        "output_columns",
        (tiles.count, m, edge, filters),
        (tiles.count, edge, filters),
        columns,
        x.dtype,
        axes=("p", "j", "co"),
    )

    def rows(p: Any, i: Any, co: Any) -> Any:
        line = _Line(matrix, [half[p, i, as_dim(k), co] for k in range(edge)], x.dtype)
        return line.named, [((p, i, j, co), v) for j, v in enumerate(line.results)]

    return program.compute_several(
        "results",
        (tiles.count, m, m, filters),
        (tiles.count, m, filters),
        rows,
        x.dtype,
        axes=("p", "i", "co"),
    )
