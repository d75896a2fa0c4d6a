"""Strides of arguments: which arrays a program addresses in place, and what stride variables are.

An array that has the strides that its parameter declares is used in place, and another one as a
contiguous copy, as in a compiled call. Variables are bound by their first occurrence. If neither
the array nor its copy fits what the arguments before it have bound, all arrays are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blockwright.interp.lanes import RunState
from blockwright.interp.memory import compact_strides
from blockwright.ir import Buffer, Var, collect, show
from blockwright.support import InterpretError

if TYPE_CHECKING:
    from blockwright.interp.run import CompiledFunction

Array = np.ndarray[Any, Any]
Steps = tuple[int, ...]
"""Strides of an array in elements."""


def bind_strides(
    compiled: CompiledFunction,
    state: RunState,
    pairs: Sequence[tuple[Buffer, Array]],
    values: dict[Var, Any],
) -> list[bool]:
    """Bind the variables of strides in `values`; return which arrays are used in place.

    Raises: InterpretError BW706 for a parameter whose strides neither an array nor its copy has.
    """
    for copied in (False, True):
        known = dict(values)
        result: list[bool] = []
        for buffer, array in pairs:
            fits = _fit(compiled, state, buffer, array, known, copied)
            if fits is not None:
                result.append(fits)
            elif copied:
                raise _misfit(compiled, buffer, array)
            else:
                break
        else:
            values.update(known)
            return result
    raise AssertionError("unreachable")


def _fit(
    compiled: CompiledFunction,
    state: RunState,
    buffer: Buffer,
    array: Array,
    known: dict[Var, Any],
    copied: bool,
) -> bool | None:
    """Whether an array (True) or its copy (False) has the strides of its parameter.

    None if neither does. The variables that it binds are added to `known`.
    """
    if not buffer.strides:
        return array.flags.c_contiguous
    own = _steps(buffer, array)
    compact = compact_strides(tuple(max(extent, 1) for extent in _shape(buffer, array)))
    for steps, in_place in (
        (None if copied else own, True),
        (compact, array.flags.c_contiguous),
    ):
        found = None if steps is None else _bound(compiled, state, buffer, array, steps, known)
        if found is not None:
            known.update(found)
            return in_place
    return None


def _shape(buffer: Buffer, array: Array) -> tuple[int, ...]:
    return array.shape[: buffer.ndim]  # elements of vector types have an axis of their own


def _steps(buffer: Buffer, array: Array) -> Steps | None:
    """The strides of an array; None if a program cannot address it in place."""
    if array.flags.c_contiguous:
        return tuple(max(s // array.itemsize // buffer.dtype.lanes, 0) for s in array.strides)
    unit = array.itemsize * buffer.dtype.lanes
    strides = array.strides[: buffer.ndim]
    together = array.strides[buffer.ndim :] in ((), (array.itemsize,))
    if not together or any(step < 0 or step % unit for step in strides):
        return None
    return tuple(step // unit for step in strides)


def _bound(
    compiled: CompiledFunction,
    state: RunState,
    buffer: Buffer,
    array: Array,
    steps: Steps,
    known: dict[Var, Any],
) -> dict[Var, Any] | None:
    """The variables that strides bind; None if a declared stride has another value.

    The stride of an axis with fewer than two elements may be anything.
    """
    result: dict[Var, Any] = {}
    shape = _shape(buffer, array)
    declared = zip(buffer.strides, compiled.strides[buffer], shape, steps, strict=False)
    for stride, value_of, extent, step in reversed(list(declared)):
        if isinstance(stride, Var) and stride not in known and stride not in result:
            result[stride] = step
            continue
        if 0 in shape or extent == 1:
            continue
        so_far = {**known, **result}
        for var in collect(stride, Var):
            if var not in so_far:
                raise InterpretError(
                    f"{compiled.func.name}: {var.name} is not bound by any argument",
                    code="BW701",
                    help=f"pass {var.name}=… to interpret",
                )
        if value_of(compiled.environment(state, so_far)) != step:
            return None
    return result


def _misfit(compiled: CompiledFunction, buffer: Buffer, array: Array) -> InterpretError:
    given = tuple(step / array.itemsize / buffer.dtype.lanes for step in array.strides)
    found = ", ".join(f"{step:g}" for step in given[: buffer.ndim])
    declared = ", ".join(show(stride) for stride in buffer.strides)
    return InterpretError(
        f"{compiled.func.name}: argument {buffer.name} has the strides ({found}), not the "
        f"declared ones, ({declared}), and a contiguous copy has not either",
        code="BW706",
        help="pass an array with the declared strides",
    )
