"""Hardware operations: dot products of vector lanes and products of small matrices, one row each.

`dot4_u8s8(c, a, b)` with lanes c[n], a[4 * n] and b[4 * n] is
`c[i] + a[4i] * b[4i] + … + a[4i + 3] * b[4i + 3]` in every lane i. A row states the meaning as an
expression, which the interpreter evaluates, the verifier expands and the code generator emits where
a target has no instruction for it, and the LLVM intrinsics that compute the same.

Integer products are exact: they are formed in the accumulator's type and sums wrap. `dot2_bf16`
rounds after each of two fused multiply-adds, the odd element first, as AVX512-BF16 does, and Arm's
BFMLALT and BFMLALB one after the other. Arm's BFDOT and BFMMLA round otherwise, and so have rows of
their own: `dot2_bf16_odd`, `mma_2x2x4_bf16_odd`. See docs/semantics.md.

`mma_2x2x8_s8s8(c, a, b)` adds a 2 × 8 by 8 × 2 product to c[4]: a has rows, b has columns, each of
8 consecutive elements; no strategy chooses these instructions of Arm, which are checked in assembly
only. `mma_16x16x64_s8s8` does so for AMX, where b[16 * 64] is [k / 4][n][4]: its operands are tile
registers, buffers of scope "amx.tile" (`intrin.tile_registers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from blockwright import ir
from blockwright.intrin import round_to_odd
from blockwright.ir import DType, Expr


class Form(msgspec.Struct, frozen=True):
    """An LLVM intrinsic that computes a dot product for one number of lanes.

    Attributes:
        intrinsic: name without the prefix "llvm.".
        features: what a target must have.
        element: LLVM type of the elements of A and B as the intrinsic takes them.
        adds: whether the intrinsic takes the accumulator; else it returns the sum of products.
        swapped: whether B comes before A.
        then: a second intrinsic, applied to the result of the first and the same A and B.
    """

    intrinsic: str
    features: frozenset[str]
    element: str
    adds: bool = True
    swapped: bool = False
    then: str = ""


class DotProduct(msgspec.Struct, frozen=True):
    """A dot product of groups of lanes.

    Attributes:
        name: of the operation, as in `T.call_intrin(type, name, c, a, b)`.
        group: elements of A and B that are summed into one lane.
        a, b, accumulator: element types.
        forms: lanes of the accumulator → intrinsics, the preferred one first.
        odd: whether floats are rounded to odd (`intrin.round_to_odd`): two products are added to
            each other, then to the accumulator. The result is not that of a sum that rounds to
            nearest, so no tensor intrinsic uses such a row in place of one.
    """

    name: str
    group: int
    a: str
    b: str
    accumulator: str
    forms: Mapping[int, tuple[Form, ...]]
    odd: bool = False

    def types(self, lanes: int) -> tuple[DType, DType, DType]:
        """Types of accumulator, A and B."""
        wide = self.ratio * lanes
        return (
            ir.dtype_of(self.accumulator).with_lanes(lanes),
            ir.dtype_of(self.a).with_lanes(wide),
            ir.dtype_of(self.b).with_lanes(wide),
        )

    def meaning(self, c: Expr, a: Expr, b: Expr) -> Expr:
        """The value in elementary operations; each operand is evaluated once."""
        names = [ir.Var(name, x.dtype) for name, x in zip("cab", (c, a, b), strict=True)]

        def factors(k: int) -> tuple[Expr, Expr]:
            pairs = zip(*(self.places(lane, k) for lane in range(c.dtype.lanes)), strict=True)
            x, y = (ir.Shuffle((v,), at) for v, at in zip(names[1:], pairs, strict=True))
            return ir.Cast(c.dtype, x), ir.Cast(c.dtype, y)

        result = self.sum(names[0], factors)
        for var, value in zip(names[::-1], (b, a, c), strict=True):
            result = ir.Let(var, value, result)
        return result

    @property
    def depth(self) -> int:
        """Products that are added to one lane."""
        return self.group

    @property
    def ratio(self) -> int:
        """Lanes of A and of B per lane of the accumulator."""
        return self.group

    @property
    def in_tiles(self) -> bool:
        """Whether the operands are tile registers of AMX."""
        return False

    @property
    def tile(self) -> int:
        """Lanes of the accumulator that belong together."""
        return 1

    def places(self, lane: Any, k: Any) -> tuple[Any, Any]:
        """The lanes of A and B whose product is the k-th of a lane; numbers or expressions."""
        at = lane * self.group + k
        return at, at

    def sum(self, c: Expr, factors: Callable[[int], tuple[Expr, Expr]]) -> Expr:
        """The accumulator after all products, given the factors of the k-th."""
        if self.odd:
            return self._sum_of_pairs(c, factors)
        for k in self.order:
            c = self.step(c, *factors(k))
        return c

    def _sum_of_pairs(self, c: Expr, factors: Callable[[int], tuple[Expr, Expr]]) -> Expr:
        for k in range(0, self.depth, 2):
            pair = (round_to_odd.product(*factors(at)) for at in (k, k + 1))
            c = round_to_odd.add(round_to_odd.flushed(c), round_to_odd.add(*pair))
        return c

    @property
    def order(self) -> tuple[int, ...]:
        """The order in which products are added."""
        forward = tuple(range(self.depth))
        return forward if self.exact else forward[::-1]

    @property
    def exact(self) -> bool:
        """Whether the order of additions has no effect."""
        return self.accumulator.startswith("int")

    def step(self, c: Expr, x: Expr, y: Expr) -> Expr:
        """The accumulator after one product; `x` and `y` have its type."""
        return c + x * y if self.exact else ir.Call("fma", (x, y, c), c.dtype)

    def form(self, lanes: int, features: frozenset[str]) -> tuple[int, Form] | None:
        """The widest intrinsic of at most `lanes` lanes on a target with these features.

        Returns its lanes, which divide `lanes`, and the intrinsic; None if there is none.
        """
        for width in sorted(self.forms, reverse=True):
            usable = [form for form in self.forms[width] if form.features <= features]
            if usable and lanes % width == 0:
                return width, usable[0]
        return None


class MatrixProduct(DotProduct, frozen=True):
    """A product of small matrices: C[m, n] += A[m, depth] * B[depth, n].

    Lanes of A are [m][depth], of B [depth / group][n][group], of C [m][n]; longer vectors hold
    several such matrices. Unless they are rounded to odd, sums of floats are formed separately for
    even and odd positions from zero, by fused multiply-adds, and added to C together, as AMX-BF16
    does.

    Attributes:
        m, n: extents of C.
        groups: groups of the reduction.
    """

    m: int = 1
    n: int = 1
    groups: int = 1

    @property
    def in_tiles(self) -> bool:
        return self.groups > 1

    @property
    def depth(self) -> int:
        return self.group * self.groups

    @property
    def ratio(self) -> int:
        return self.depth // self.n

    @property
    def tile(self) -> int:
        return self.m * self.n

    def places(self, lane: Any, k: Any) -> tuple[Any, Any]:
        matrix, row, column = lane // self.tile, lane % self.tile // self.n, lane % self.n
        in_b = (k // self.group * self.n + column) * self.group + k % self.group
        size = self.ratio * self.tile
        return matrix * size + row * self.depth + k, matrix * size + in_b

    def sum(self, c: Expr, factors: Callable[[int], tuple[Expr, Expr]]) -> Expr:
        if self.exact or self.odd:
            return super().sum(c, factors)
        chains: list[Expr] = []
        for first in (0, 1):
            chain: Expr = ir.const(0.0, c.dtype.element)
            if c.dtype.lanes > 1:
                chain = ir.Broadcast(chain, c.dtype.lanes)
            for k in range(first, self.depth, 2):
                chain = self.step(chain, *factors(k))
            chains.append(chain)
        return c + (chains[0] + chains[1])


def _x86(
    name: str, elements: str, wide: str, narrow: str, swapped: bool = False
) -> dict[int, tuple[Form, ...]]:
    """Forms for 512, 256 and 128 bits; without AVX-512 the narrow ones need `narrow`, if any."""
    result: dict[int, tuple[Form, ...]] = {}
    for bits in (512, 256, 128):
        needs = {wide} if bits == 512 else {wide, "avx512vl"}
        form = Form(f"x86.avx512.{name}.{bits}", frozenset(needs), elements, swapped=swapped)
        rows = [form]
        if narrow and bits < 512:
            rows.append(msgspec.structs.replace(form, features=frozenset({narrow})))
        result[bits // 32] = tuple(rows)
    return result


def _neon(name: str, feature: str, swapped: bool = False) -> dict[int, tuple[Form, ...]]:
    form = Form(f"aarch64.neon.{name}.v4i32.v16i8", frozenset({feature}), "i8", swapped=swapped)
    return {4: (form,)}


def _merged(*tables: Mapping[int, tuple[Form, ...]]) -> dict[int, tuple[Form, ...]]:
    lanes = dict.fromkeys(n for table in tables for n in table)
    return {n: tuple(form for table in tables for form in table.get(n, ())) for n in lanes}


_VNNI_INT8 = {
    bits // 32: (Form(f"x86.avx2.vpdpbssd.{bits}", frozenset({"avxvnniint8"}), "i8"),)
    for bits in (128, 256)
}
_PMADDWD = {
    4: (Form("x86.sse2.pmadd.wd", frozenset({"sse2"}), "i16", adds=False),),
    8: (Form("x86.avx2.pmadd.wd", frozenset({"avx2"}), "i16", adds=False),),
    16: (Form("x86.avx512.pmaddw.d.512", frozenset({"avx512bw"}), "i16", adds=False),),
}
_DPBF16 = {
    bits // 32: (
        Form(
            f"x86.avx512bf16.dpbf16ps.{bits}",
            frozenset({"avx512bf16"} if bits == 512 else {"avx512bf16", "avx512vl"}),
            "bfloat",
        ),
    )
    for bits in (512, 256, 128)
}
_BFMLAL = {
    4: (Form("aarch64.neon.bfmlalt", frozenset({"bf16"}), "bfloat", then="aarch64.neon.bfmlalb"),)
}
_BFDOT = {
    lanes: (
        Form(f"aarch64.neon.bfdot.v{lanes}f32.v{2 * lanes}bf16", frozenset({"bf16"}), "bfloat"),
    )
    for lanes in (2, 4)
}

DOT_PRODUCTS: dict[str, DotProduct] = {
    row.name: row
    for row in (
        DotProduct(
            "dot4_u8s8", 4, "uint8", "int8", "int32",
            _merged(_x86("vpdpbusd", "i8", "avx512vnni", "avxvnni"), _neon("usdot", "i8mm")),
        ),
        DotProduct(
            "dot4_s8u8", 4, "int8", "uint8", "int32",
            _merged(_x86("vpdpbusd", "i8", "avx512vnni", "avxvnni", swapped=True),
                    _neon("usdot", "i8mm", swapped=True)),
        ),
        DotProduct("dot4_s8s8", 4, "int8", "int8", "int32",
                   _merged(_VNNI_INT8, _neon("sdot", "dotprod"))),
        DotProduct("dot4_u8u8", 4, "uint8", "uint8", "int32", _neon("udot", "dotprod")),
        DotProduct("dot2_s16s16", 2, "int16", "int16", "int32",
                   _merged(_x86("vpdpwssd", "i16", "avx512vnni", "avxvnni"), _PMADDWD)),
        DotProduct("dot2_bf16", 2, "bfloat16", "bfloat16", "float32",
                   _merged(_DPBF16, _BFMLAL)),
        DotProduct("dot2_bf16_odd", 2, "bfloat16", "bfloat16", "float32", _BFDOT, odd=True),
    )
}  # fmt: skip
"""Every dot product by its name."""

_SHORT = {"int8": "s8", "uint8": "u8", "bfloat16": "bf16"}


def _matrices(
    shape: tuple[int, int, int], a: str, b: str, total: str, intrinsic: str, *features: str
) -> MatrixProduct:
    """A row whose name follows from its shape and types. AMX groups elements in 32 bits."""
    m, n, depth = shape
    types = _SHORT[a] + _SHORT[b] if a != b or a != "bfloat16" else "bf16"
    amx, odd = "amx-tile" in features, "bf16" in features
    group = 32 // ir.dtype_of(a).bits if amx else depth
    element = "i32" if amx else "bfloat" if odd else "i8"
    form = Form(intrinsic, frozenset(features), element)
    name = f"mma_{m}x{n}x{depth}_{types}" + ("_odd" if odd else "")
    return MatrixProduct(name, group, a, b, total, {m * n: (form,)}, odd, m, n, depth // group)


_TILE, _BLOCK, _ARM = (16, 16, 64), (2, 2, 8), "aarch64.neon.{}.v4i32.v16i8".format

MATRIX_PRODUCTS: dict[str, MatrixProduct] = {
    row.name: row
    for row in (
        *(
            _matrices(_TILE, a, b, "int32", f"x86.{name}", "amx-tile", "amx-int8")
            for name, a, b in (
                ("tdpbssd", "int8", "int8"), ("tdpbsud", "int8", "uint8"),
                ("tdpbusd", "uint8", "int8"), ("tdpbuud", "uint8", "uint8"),
            )
        ),
        _matrices((16, 16, 32), "bfloat16", "bfloat16", "float32", "x86.tdpbf16ps",
                  "amx-tile", "amx-bf16"),
        _matrices(_BLOCK, "int8", "int8", "int32", _ARM("smmla"), "i8mm"),
        _matrices(_BLOCK, "uint8", "uint8", "int32", _ARM("ummla"), "i8mm"),
        _matrices(_BLOCK, "uint8", "int8", "int32", _ARM("usmmla"), "i8mm"),
        _matrices((2, 2, 4), "bfloat16", "bfloat16", "float32", "aarch64.neon.bfmmla", "bf16"),
    )
}  # fmt: skip
"""Every product of small matrices by its name."""

PRODUCTS: dict[str, DotProduct] = {**DOT_PRODUCTS, **MATRIX_PRODUCTS}
"""All rows: what interpreter, verifier and code generator know."""

for _row in PRODUCTS.values():
    _operands = ((_row.accumulator, 1), (_row.a, _row.ratio), (_row.b, _row.ratio))
    ir.register_op(ir.Builtin(_row.name, "pure", 3, operands=_operands, together=_row.tile))
