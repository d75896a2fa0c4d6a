"""The calling convention of tensor programs: order of buffers, scalars and symbolic sizes.

`int32 symbol(pointer per buffer …, scalar parameters …, symbolic sizes …)`. Symbolic sizes are, in
order of first occurrence, the variables that are an extent by themselves, followed by those that
occur only inside extents (`2 * n`) or in strides and offsets. The code generator decides how a
machine passes these values.
"""

from __future__ import annotations

import msgspec

from blockwright.ir import Buffer, PrimFunc, Var, collect, dtype_of
from blockwright.ir.attributes import CALL_DEPTH, LATE_RESULTS, NUM_OUTPUTS, OBJECT_RESULTS
from blockwright.support import BuildError


class CallingConvention(msgspec.Struct, frozen=True):
    """What a caller of a tensor program passes, in order.

    Attributes:
        buffers: pairs of a handle parameter and its buffer; the last `num_outputs` are results.
        scalars: scalar parameters.
        symbols: symbolic sizes that are not parameters.
        num_outputs: number of results among the buffers.
        late: pairs of a scalar parameter and a result that the program allocates itself when it
            knows the sizes, which are symbols here for messages.
    """

    buffers: tuple[tuple[Var, Buffer], ...]
    scalars: tuple[Var, ...]
    symbols: tuple[Var, ...]
    num_outputs: int
    late: tuple[tuple[Var, Buffer], ...] = ()

    @property
    def outputs(self) -> tuple[tuple[Var, Buffer], ...]:
        """The results among the buffers."""
        return self.buffers[len(self.buffers) - self.num_outputs :]


def calling_convention(func: PrimFunc) -> CallingConvention:
    """The calling convention of a function.

    Raises: BuildError BW619 if the attribute "num_outputs" is negative or exceeds the number of
    buffers.
    """
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
    count = int(func.attrs.get(NUM_OUTPUTS, 0))
    if not 0 <= count <= len(buffers):
        raise BuildError(
            f"{func.name} has {len(buffers)} buffers, num_outputs is {count}",
            code="BW619",
            help="results are the last buffer parameters: num_outputs is at most their number",
        )
    late = tuple((p, _late(p, *given)) for p, given in _late_results(func))
    return CallingConvention(buffers, scalars, symbols, count, late)


def tensor_results(func: PrimFunc) -> tuple[tuple[Var, Buffer], ...]:
    """All results that are tensors: pairs of a handle and a buffer, in order."""
    convention = calling_convention(func)
    found = dict((*convention.outputs, *convention.late))
    return tuple((p, found[p]) for p in func.params if p in found)


def _late_results(func: PrimFunc) -> list[tuple[Var, tuple[str, tuple[str, ...]]]]:
    given: dict[str, tuple[str, tuple[str, ...]]] = func.attrs.get(LATE_RESULTS, {})
    return [(p, given[p.name]) for p in func.params if p.name in given]


def _late(handle: Var, dtype: str, sizes: tuple[str, ...]) -> Buffer:
    shape = tuple(Var(size, dtype_of("int64")) for size in sizes)
    return Buffer(handle.name.removesuffix("_handle"), dtype_of(dtype), shape)


def entry_inputs(func: PrimFunc) -> list[Var]:
    """The parameters of a function that callers of its entry pass, in order."""
    outputs = {p for p, _ in tensor_results(func)}
    hidden = {*func.attrs.get(OBJECT_RESULTS, {}), func.attrs.get(CALL_DEPTH)}
    return [p for p in func.params if p not in outputs and p.name not in hidden]
