"""Matrix operations of warps: `ldmatrix` and `mma` on registers, and operations on fragments."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright.interp.calls import CallCompiler, CallGlobal
from blockwright.interp.gpu import fragments
from blockwright.interp.gpu.place import AddressedMemory, constant_of, one_lane, text, warps
from blockwright.interp.gpu.warp import WARP
from blockwright.interp.lanes import Env, Fn, compress
from blockwright.interp.memory import TypedView
from blockwright.ir import Buffer, Call

Array = np.ndarray[Any, Any]


class MatrixCompiler(CallCompiler):
    """Adds matrix operations. `fragment_sizes`: rows and columns declared by loads and fills."""

    def __init__(self, call_global: CallGlobal) -> None:
        super().__init__(call_global)
        self.fragment_sizes: dict[Buffer, tuple[int, int]] = {}

    def _ldmatrix(self, expr: Call) -> Fn:
        """`T.ptx_ldmatrix(transposed, number, type, to, offset, from, offset)`."""
        transposed, number = bool(constant_of(expr, 0)), constant_of(expr, 1)
        to, source = AddressedMemory(self, *expr.args[3:5]), AddressedMemory(self, *expr.args[5:7])
        site, size = self.site(expr), source.dtype.nbytes
        if number not in (1, 2, 4) or to.dtype is not source.dtype or (transposed and size != 2):
            raise ValueError(
                "expected 1, 2 or 4 matrices of one type, with 16-bit elements if transposed"
            )
        row = 16 // size

        def load(env: Env) -> int:
            whole = warps(env, site, expr.op)
            first = source.at(env).reshape(-1, WARP)[:, : 8 * number].reshape(-1)
            view: TypedView = env[source.slot]
            if np.any((first * size + view.phase) % 16):
                raise site.error(
                    env, "BW758", "a row for ldmatrix does not start at a multiple of 16 bytes", 0
                )
            here = compress(env, (np.arange(env[0]) % WARP) < 8 * number)
            rows = source.read(here, site, first[:, None] + np.arange(row))
            matrices = rows.reshape(whole, number, 8, row)
            held = fragments.loaded(matrices, transposed)  # [warp, number, lane, packed]
            values = held.transpose(0, 2, 1, 3).reshape(env[0], -1)
            to.write(env, site, to.at(env)[:, None] + np.arange(values.shape[1]), values)
            return 0

        return load

    def _mma(self, expr: Call) -> Fn:
        """Matrix product of a warp.

        `T.ptx_mma(type, shape, "row", "col", types of A, B, C, A, offset, B, offset, C, offset,
        saturate)`.
        """
        shape, types = text(expr.args[0]), [text(a) for a in expr.args[3:6]]
        a, b, c = (AddressedMemory(self, *expr.args[k : k + 2]) for k in (6, 8, 10))
        bits, depth = a.dtype.bits, int(shape.removeprefix("m16n8k") or 0)
        if (
            not shape.startswith("m16n8k")
            or depth not in fragments.DEPTHS.get(bits, ())
            or [text(x) for x in expr.args[1:3]] != ["row", "col"]
            or b.dtype.bits != bits
        ):
            known = "m16n8 by k4, k8 (32 bits), k8, k16 (16 bits), k16, k32 (8 bits), row by col"
            raise ValueError(f"the interpreter supports {known}; not {shape} of {types}")
        layouts = fragments.left(depth, bits), fragments.right(depth, bits), fragments.result()
        site, kind = self.site(expr), c.dtype

        def multiply(env: Env) -> int:
            whole = warps(env, site, expr.op)
            full: list[Array] = []
            for place, table, sizes in zip(
                (a, b, c), layouts, ((16, depth), (depth, 8), (16, 8)), strict=True
            ):
                where = place.at(env)[:, None] + np.arange(int(table.rows.shape[1]))
                held = place.read(env, site, where).reshape(whole, WARP, -1)
                if bits == 32 and place is not c:
                    held = fragments.shortened(held)
                matrix = np.zeros((whole, *sizes), held.dtype)
                matrix[:, table.rows, table.columns] = held
                full.append(matrix)
            total = fragments.product(full[0], full[1], full[2], kind)
            table = layouts[2]
            values = total[:, table.rows, table.columns].reshape(env[0], -1)
            c.write(env, site, c.at(env)[:, None] + np.arange(values.shape[1]), values)
            return 0

        return multiply

    def _mma_fill(self, expr: Call) -> Fn:
        """`T.mma_fill(type, number, to, offset)`: fill with zeros."""
        number, to = constant_of(expr, 0), AddressedMemory(self, *expr.args[1:3])
        site = self.site(expr)

        def fill(env: Env) -> int:
            to.write(env, site, to.at(env)[:, None] + np.arange(number), to.dtype.numpy().type(0))
            return 0

        return fill

    def _mma_store(self, expr: Call) -> Fn:
        """`T.mma_store(type, m, n, to, from, offset, stride)`: store a 16 × 16 result."""
        if [constant_of(expr, k) for k in (0, 1)] != [16, 16]:
            raise ValueError("the result must have 16 × 16 elements")
        to, source = AddressedMemory(self, expr.args[2]), AddressedMemory(self, *expr.args[3:5])
        stride, table, site = self.index(expr.args[5]), fragments.square(), self.site(expr)

        def store(env: Env) -> int:
            whole = warps(env, site, expr.op)
            held = source.read(env, site, source.at(env)[:, None] + np.arange(8))
            rows, columns = (np.tile(x, (whole, 1)) for x in table)
            where = to.at(env)[:, None] + rows * np.reshape(stride(env), (-1, 1)) + columns
            to.write(env, site, where, held)
            return 0

        return store

    def _fragment(
        self, expr: Call, first: int, index: int
    ) -> tuple[AddressedMemory, Fn, tuple[int, int]]:
        """A fragment argument, its index in the buffer, and its rows and columns."""
        m, n, k = (constant_of(expr, first + i) for i in (1, 2, 3))
        place = AddressedMemory(self, expr.args[first])
        scope = place.buffer.scope
        sizes = (
            (m, k) if scope == "wmma.matrix_a" else (k, n) if scope == "wmma.matrix_b" else (m, n)
        )
        known = self.fragment_sizes.setdefault(place.buffer, sizes)
        if known != sizes:
            raise ValueError(f"{place.buffer.name} holds fragments of {known}, not of {sizes}")
        return place, self.index(expr.args[index]), sizes

    def _fill_fragment(self, expr: Call) -> Fn:
        """`T.tvm_fill_fragment(fragment, m, n, k, index, value)`."""
        to, index, sizes = self._fragment(expr, 0, 4)
        value, site = self.value(expr.args[5]), self.site(expr)

        def fill(env: Env) -> int:
            one = one_lane(env, site, expr.op)
            to.write(one, site, _elements(one, to, index, sizes), _column(value(one)))
            return 0

        return fill

    def _load_fragment(self, expr: Call) -> Fn:
        """`T.tvm_load_matrix_sync(fragment, m, n, k, index, from, stride, layout)`."""
        to, index, sizes = self._fragment(expr, 0, 4)
        source, stride = AddressedMemory(self, expr.args[5]), self.index(expr.args[6])
        layout, site = text(expr.args[7]), self.site(expr)

        def load(env: Env) -> int:
            one = one_lane(env, site, expr.op)
            where = _matrix(one, source, stride, sizes, layout)
            values = source.read(one, site, where)
            to.write(one, site, _elements(one, to, index, sizes), values)
            return 0

        return load

    def _store_fragment(self, expr: Call) -> Fn:
        """`T.tvm_store_matrix_sync(fragment, m, n, k, index, to, stride, layout)`."""
        source, index, sizes = self._fragment(expr, 0, 4)
        to, stride = AddressedMemory(self, expr.args[5]), self.index(expr.args[6])
        layout, site = text(expr.args[7]), self.site(expr)

        def store(env: Env) -> int:
            one = one_lane(env, site, expr.op)
            values = source.read(one, site, _elements(one, source, index, sizes))
            to.write(one, site, _matrix(one, to, stride, sizes, layout), values)
            return 0

        return store

    def _multiply_fragments(self, expr: Call) -> Fn:
        """`T.tvm_mma_sync(D, index, A, index, B, index, C, index)`: D = A @ B + C."""
        places = [AddressedMemory(self, expr.args[k]) for k in (0, 2, 4, 6)]
        indices = [self.index(expr.args[k]) for k in (1, 3, 5, 7)]
        site, sizes = self.site(expr), self.fragment_sizes

        def multiply(env: Env) -> int:
            one = one_lane(env, site, expr.op)
            full: list[Array] = []
            for place, index in zip(places[1:], indices[1:], strict=True):
                shape = sizes.get(place.buffer, (16, 16))
                where = _elements(one, place, index, shape)
                full.append(place.read(one, site, where).reshape(-1, *shape))
            total = fragments.product(full[0], full[1], full[2], places[0].dtype)
            where = _elements(one, places[0], indices[0], (total.shape[1], total.shape[2]))
            places[0].write(one, site, where, total.reshape(one[0], -1))
            return 0

        return multiply


def _elements(env: Env, place: AddressedMemory, index: Fn, sizes: tuple[int, int]) -> Array:
    """Positions of a fragment's elements; the buffer is tiled with fragments in row-major order."""
    view: TypedView = env[place.slot]
    rows, columns = sizes
    pitch = view.strides[-2] if len(view.strides) > 1 else columns
    across = max(1, pitch // columns)
    row, column = (x.reshape(-1) for x in np.indices(sizes))
    number = np.broadcast_to(index(env), env[0])
    first = number // across * rows * pitch + number % across * columns
    return (place.at(env) + first)[:, None] + row * pitch + column


def _matrix(
    env: Env, place: AddressedMemory, stride: Fn, sizes: tuple[int, int], layout: str
) -> Array:
    rows, columns = (x.reshape(-1) for x in np.indices(sizes))
    if layout == "col_major":
        rows, columns = columns, rows
    step = np.reshape(np.asarray(stride(env)), (-1, 1))
    return place.at(env)[:, None] + rows * step + columns


def _column(value: Any) -> Any:
    return value[:, None] if type(value) is np.ndarray else value
