"""Arguments of an interpreted call: checks of arrays and numbers, binding of symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from blockwright.analysis.facts import declared_range
from blockwright.analysis.sizes import linear_in
from blockwright.interp import numeric
from blockwright.interp.lanes import Env, RunState
from blockwright.interp.objects import Slot
from blockwright.interp.strides import bind_strides
from blockwright.ir import Buffer, PrimFunc, Var, collect
from blockwright.ir.attributes import LATE_RESULTS
from blockwright.ir.dtype import DType
from blockwright.runtime.results import has_shared_elements
from blockwright.support import InterpretError
from blockwright.support.kinds import number_text

if TYPE_CHECKING:
    from blockwright.interp.run import CompiledFunction

Array = np.ndarray[Any, Any]


def match_arguments(
    compiled: CompiledFunction, args: Sequence[Any], scalars: dict[str, Any], written: set[Buffer]
) -> tuple[list[Array], dict[Var, Any]]:
    func = compiled.func
    buffers = dict(func.buffer_map)
    wanted = [p for p in func.params if p in buffers or p.name not in scalars]
    if len(args) != len(wanted):
        names = ", ".join(buffers[p].name if p in buffers else p.name for p in wanted)
        raise InterpretError(
            f"{func.name} takes {len(wanted)} arguments ({names}), got {len(args)}",
            code="BW701",
            help="pass outputs too, as arrays to be written",
        )
    arrays: list[Array] = []
    values: dict[Var, Any] = {}
    for param, arg in zip(wanted, args, strict=True):
        if param in buffers:
            arrays.append(array_argument(func, buffers[param], arg, buffers[param] in written))
        else:
            values[param] = scalar_argument(func, param, arg)
    known = {v.name: v for v in (*compiled.scalars, *compiled.symbols)}
    for name, value in scalars.items():
        if name not in known:
            raise InterpretError(f"{func.name} has no scalar {name!r}", code="BW701")
        values[known[name]] = scalar_argument(func, known[name], value)
    return arrays, values


_NUMBERS: tuple[type, ...] = (int, float, np.generic)


def scalar_argument(func: PrimFunc, var: Var, value: Any) -> Any:
    if var.name in func.attrs.get(LATE_RESULTS, {}) and isinstance(value, list):
        return cast("list[Any]", value)
    if var.dtype.is_handle:
        return value if isinstance(value, Slot) else Slot(value)
    if not isinstance(value, _NUMBERS):
        raise InterpretError(
            f"{func.name}: scalar {var.name} must be a number, not {type(value).__name__}",
            code="BW702",
        )
    if not var.dtype.is_int and not var.dtype.is_bool:
        return numeric.constant(value, var.dtype)
    number: Any = cast("Any", value).item() if isinstance(value, np.generic) else value
    if isinstance(number, float):
        raise InterpretError(
            f"{func.name}: scalar {var.name} is {var.dtype}, not a float",
            code="BW702",
            help="convert the value before the call",
        )
    if not var.dtype.min_value <= number <= var.dtype.max_value:
        raise InterpretError(
            f"{func.name}: scalar {var.name}: {number_text(number)} does not fit {var.dtype}",
            code="BW702",
            help="pass a number in range",
        )
    return int(number) if var.dtype.is_int else numeric.constant(number, var.dtype)


def array_argument(func: PrimFunc, buffer: Buffer, arg: Any, written: bool) -> Array:
    where = f"{func.name}: argument {buffer.name}"
    if not isinstance(arg, np.ndarray):
        kind = type(arg).__name__
        raise InterpretError(f"{where} must be a NumPy array, not {kind}", code="BW702")
    if isinstance(arg, np.ma.MaskedArray):
        raise InterpretError(
            f"{where} is a masked array",
            code="BW702",
            help="pass .filled(value), or the mask as an argument",
        )
    array = _as_elements(cast(Array, arg), buffer.dtype)
    if array.dtype != buffer.dtype.numpy():
        raise InterpretError(f"{where} must hold {buffer.dtype}, not {array.dtype}", code="BW703")
    lanes = buffer.dtype.lanes
    rank = buffer.ndim + (lanes > 1)
    if array.ndim != rank or (lanes > 1 and array.shape[-1] != lanes):
        raise InterpretError(
            f"{where} must have {rank} dimensions, its shape is {array.shape}", code="BW704"
        )
    if written and not array.flags.writeable:
        raise InterpretError(f"{where} is written but the array is read-only", code="BW707")
    if written and has_shared_elements(array):
        raise InterpretError(
            f"{where} is written, and its own elements share memory",
            code="BW706",
            help="pass a copy",
        )
    return array


def _as_elements(array: Array, dtype: DType) -> Array:
    """An array of codes, or of a sub-byte type of `ml_dtypes`, as one of the elements' NumPy type.

    Such elements have a byte each in both, so the result is the same memory.
    """
    element = dtype.element
    if element.bits >= 8 or element.is_bool:
        return array
    codes = np.uint8 if not element.is_int else getattr(ml_dtypes, element.name)
    return array.view(element.numpy()) if array.dtype == codes else array


def bind_symbols(
    compiled: CompiledFunction,
    state: RunState,
    pairs: Sequence[tuple[Buffer, Array]],
    values: dict[Var, Any],
) -> list[bool]:
    """Bind the variables of plain dimensions and strides; the first occurrence wins.

    Returns which arrays have the strides of their parameters; see `bind_strides`.
    """
    func = compiled.func
    for buffer, array in pairs:
        for extent, actual in zip(buffer.shape, array.shape, strict=False):
            if isinstance(extent, Var):
                values.setdefault(extent, actual)
    _solve_symbols(pairs, values)
    in_place = bind_strides(compiled, state, pairs, values)
    _solve_symbols(pairs, values)
    for var in (*compiled.scalars, *compiled.symbols):
        if var not in values:
            raise InterpretError(
                f"{func.name}: {var.name} is not bound by any argument",
                code="BW701",
                help=f"pass {var.name}=… to interpret",
            )
    for var in compiled.symbols:
        if values[var] > var.dtype.max_value:
            raise InterpretError(
                f"{func.name}: {var.name} = {values[var]} does not fit {var.dtype}", code="BW702"
            )
    check_ranges(compiled, values)
    return in_place


def check_ranges(compiled: CompiledFunction, values: Mapping[Var, Any]) -> None:
    """Check that sizes are not negative, and that sizes and scalars are in their declared ranges.

    Raises: InterpretError BW708.
    """
    scalars = set(compiled.scalars)
    for var in compiled.given:
        if not var.dtype.is_int or var not in values:
            continue
        value = values[var]
        low, high = declared_range(compiled.func, var)
        smallest = (value if var in scalars else 0) if low is None else low
        largest = value if high is None else high
        if not smallest <= value <= largest:
            raise InterpretError(
                f"{compiled.func.name}: {var.name} = {value} is outside its declared "
                f"range [{smallest}, {largest}]",
                code="BW708",
            )


def _solve_symbols(pairs: Sequence[tuple[Buffer, Array]], values: dict[Var, Any]) -> None:
    """Solve dimensions such as `2 * n + 1` for unbound variables; `check_shapes` verifies them."""
    for buffer, array in pairs:
        for extent, actual in zip(buffer.shape, array.shape, strict=False):
            unknown = [var for var in collect(extent, Var) if var not in values]
            linear = linear_in(extent, unknown[0]) if len(unknown) == 1 else None
            if linear is not None and linear[0]:
                values[unknown[0]] = (actual - linear[1]) // linear[0]


def check_shapes(
    compiled: CompiledFunction, pairs: Sequence[tuple[Buffer, Array]], env: Env
) -> None:
    """Check that every dimension agrees with its expression."""
    shapes = dict(zip(compiled.buffers, compiled.shapes, strict=True))
    for buffer, array in pairs:
        shape = shapes[buffer]
        expected = tuple(fn(env) for fn in shape)
        if expected != array.shape[: buffer.ndim]:
            symbolic = any(isinstance(n, Var) for n in buffer.shape)
            given = ", ".join(f"{v.name} = {env[compiled.slots[v]]}" for v in compiled.symbols)
            name = f"{compiled.func.name}: argument {buffer.name}"
            raise InterpretError(
                f"{name} has shape {array.shape}, expected {expected}",
                code="BW709" if symbolic else "BW704",
                notes=[f"bound from the arguments before it: {given}"] if symbolic else [],
            )
