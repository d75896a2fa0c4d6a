"""Specialize a tensor program for particular sizes, scalars or buffer layouts.

n, m = T.int64(), T.int64()            # A: T.Buffer((n, m))   n: a symbol, k: a parameter
func.specialize({"n": 16, "k": 4})     # A: T.Buffer((16, m)), k is gone from the parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from blockwright.ir import build
from blockwright.ir import expr as E
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.ir.buffer import Buffer
from blockwright.ir.convert import cast_to, const
from blockwright.ir.expr import Expr, Var
from blockwright.ir.function import PrimFunc
from blockwright.ir.structural import structural_equal
from blockwright.ir.visit import Mutator, collect
from blockwright.support import IRError


def specialize(self: PrimFunc, mapping: Mapping[Any, Any]) -> PrimFunc:
    """Substitute given values for scalars and sizes of a program.

    Args:
        self: the program; it is not modified.
        mapping: maps scalar parameters and symbols of buffer shapes (the variable or its name) to
            integers or expressions, and buffer parameters (the handle, the buffer or its name) to a
            buffer whose shape, strides and offset are used instead.

    Raises:
        IRError: BW218 if a key names nothing in the program; BW219 if a value does not match the
            type, the rank, a fixed size, or another value given for the same symbol.

    Before::

        def f(A: T.Buffer((n, 4), "float32"), n: T.int32):

    After `specialize({"n": 8})`::

        def f(A: T.Buffer((8, 4), "float32")):
    """
    func = self
    values: dict[Var, Expr] = {}
    layouts: dict[Buffer, Buffer] = {}
    for key, value in mapping.items():
        target = _target(func, key)
        if isinstance(target, Buffer):
            if not isinstance(value, Buffer):
                raise IRError(
                    f"{target.name} is a buffer; it is specialized with a buffer", code="BW219"
                )
            _match(target, value, values)
            layouts[target] = value
        else:
            _bind(values, target, value)
    rewrite = _Specialize(values, layouts)
    for old, new in layouts.items():
        _check(old, new, rewrite)
    attrs = {
        key: _without(value, {v.name for v in values}) if key in _BOUNDS else value
        for key, value in func.attrs.items()
    }
    return func.replace(
        params=tuple(p for p in func.params if p not in values),
        buffer_map=tuple((handle, rewrite(buffer)) for handle, buffer in func.buffer_map),
        body=rewrite(func.body),
        attrs=attrs,
    )


_BOUNDS = (UPPER_BOUND, LOWER_BOUND)


def _without(bounds: Any, names: set[str]) -> Any:
    return {k: v for k, v in cast("dict[str, int]", bounds).items() if k not in names}


def _target(func: PrimFunc, key: Any) -> Var | Buffer:
    """The scalar, symbol or parameter buffer that a key refers to."""
    buffers = dict(func.buffer_map)
    symbols = [v for b in func.buffers for v in collect(b, Var)]
    scalars = [p for p in func.params if p not in buffers]
    for variable in (*scalars, *symbols):
        if key is variable or (isinstance(key, str) and key == variable.name):
            return variable
    for handle, buffer in func.buffer_map:
        named = isinstance(key, str) and key in (handle.name, buffer.name)
        if key is handle or key is buffer or named:
            return buffer
    known = dict.fromkeys(
        [*(s.name for s in (*scalars, *symbols)), *(b.name for b in func.buffers)]
    )
    shown = key if isinstance(key, str) else getattr(key, "name", repr(key))
    raise IRError(
        f"{func.name} has no parameter or size {shown!r}",
        code="BW218",
        help=f"it has {', '.join(known) or 'none'}",
    )


def _bind(values: dict[Var, Expr], variable: Var, value: Any) -> None:
    if isinstance(value, Buffer) or not isinstance(value, (int, float, Expr)):
        raise IRError(f"{variable.name} takes a number or an expression", code="BW219")
    node = value if isinstance(value, Expr) else const(value, variable.type)
    if node.dtype is not variable.type:
        node = cast_to(node, variable.type)
    known = values.setdefault(variable, node)
    if not structural_equal(known, node):
        raise IRError(f"{variable.name} is given two values, {known!r} and {node!r}", code="BW219")


def _parts(buffer: Buffer) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    offset = () if buffer.offset is None else (buffer.offset,)
    return buffer.shape, buffer.strides, offset


def _match(old: Buffer, new: Buffer, values: dict[Var, Expr]) -> None:
    """Bind the symbols in the shape, strides and offset of `old` to those of `new`."""
    if old.dtype is not new.dtype or old.ndim != new.ndim:
        raise IRError(
            f"{old.name} is {old.dtype} with {old.ndim} dimensions, not {new.dtype} with "
            f"{new.ndim}",
            code="BW219",
        )
    for before, after in zip(_parts(old), _parts(new), strict=True):
        if len(before) == len(after):
            for a, b in zip(before, after, strict=True):
                if isinstance(a, Var):
                    _bind(values, a, b)


def _check(old: Buffer, new: Buffer, rewrite: Mutator) -> None:
    """Check that the remaining dimensions, strides and offset agree after substitution."""
    for before, after in zip(_parts(old), _parts(new), strict=True):
        for a, b in zip(before, after, strict=False):
            result = rewrite(a)
            if not structural_equal(result, cast_to(b, result.dtype)):
                raise IRError(
                    f"{old.name} has {result!r} where the given buffer has {b!r}", code="BW219"
                )


class _Specialize(Mutator):
    """Substitutes values and folds the resulting constants."""

    def __init__(self, values: Mapping[Var, Expr], layouts: Mapping[Buffer, Buffer]) -> None:
        super().__init__()
        self._memo.update(dict(values.items()))
        self._layouts = layouts

    def descend(self, node: Any) -> Any:
        new = node.map_children(self)
        if new is node:
            return node
        if isinstance(new, E.BinaryOp):
            return build.binary(type(new), new.a, new.b)
        if isinstance(new, E.CompareOp):
            return build.compare(type(new), new.a, new.b)
        if isinstance(new, E.And):
            return build.logical_and(new.a, new.b)
        if isinstance(new, E.Or):
            return build.logical_or(new.a, new.b)
        return cast_to(new.value, new.type) if isinstance(new, E.Cast) else new

    def rewrite_Buffer(self, node: Buffer) -> Buffer:
        result = self.descend(node)
        given = self._layouts.get(node)
        if given is None:
            return result
        return result.replace(
            strides=given.strides,
            offset=given.offset,
            data_alignment=given.data_alignment or node.data_alignment,
            offset_factor=given.offset_factor or node.offset_factor,
        )


PrimFunc.specialize = specialize
