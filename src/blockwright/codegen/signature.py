"""The parameters of a compiled function, in the order in which the library passes them.

`i32 @symbol(ptr per buffer …, scalar parameters …, symbols of the buffers' shapes …)`. Symbols are
the variables that stand alone as an extent, in order of first occurrence; then variables that only
occur within extents (`2 * n`) or as strides.
"""

from __future__ import annotations

import msgspec

from blockwright.codegen.llvm import types
from blockwright.ir import Buffer, PrimFunc, Var, collect
from blockwright.support import BuildError


class NativeSignature(msgspec.Struct, frozen=True):
    """Attributes: `handles` are pointer parameters without a buffer; `params` all LLVM types."""

    buffers: tuple[tuple[Var, Buffer], ...]
    scalars: tuple[Var, ...]
    symbols: tuple[Var, ...]
    num_outputs: int

    @property
    def types(self) -> list[str]:
        plain = [types.value_type(v.dtype) for v in (*self.scalars, *self.symbols)]
        return ["ptr"] * len(self.buffers) + plain

    @property
    def outputs(self) -> tuple[tuple[Var, Buffer], ...]:
        return self.buffers[len(self.buffers) - self.num_outputs :]


def signature(func: PrimFunc) -> NativeSignature:
    """The signature of a function. Raises: BuildError BW619 for a result count that cannot be."""
    mapped = dict(func.buffer_map)
    buffers = tuple((p, mapped[p]) for p in func.params if p in mapped)
    scalars = tuple(p for p in func.params if p not in mapped)
    alone = [d for _, b in buffers for d in b.shape if isinstance(d, Var)]
    inside = [v for _, b in buffers for d in b.shape for v in collect(d, Var)]
    strides = [v for _, b in buffers for d in b.strides for v in collect(d, Var)]
    offsets = [v for _, b in buffers if b.offset is not None for v in collect(b.offset, Var)]
    known = set(scalars)
    symbols = tuple(
        v for v in dict.fromkeys([*alone, *inside, *strides, *offsets]) if v not in known
    )
    count = int(func.attrs.get("num_outputs", 0))
    if not 0 <= count <= len(buffers):
        raise BuildError(
            f"{func.name} has {len(buffers)} buffers, num_outputs is {count}",
            code="BW619",
            help="outputs are the last buffer parameters",
        )
    return NativeSignature(buffers, scalars, symbols, count)
