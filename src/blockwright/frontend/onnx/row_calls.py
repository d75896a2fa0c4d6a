"""Convert nodes of operators that a row describes: the names of attributes are the same.

Elu(x), alpha=2.0   →   R.elu(x, alpha=2.0)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converter, Converters
from blockwright.ops.row import OpRow


def row_converter(row: OpRow) -> Converter:
    """The converter of an operator whose inputs and attributes are those of a row."""

    def convert(call: Call) -> ir.GraphExpr:
        given: dict[str, Any] = {}
        for name in {*call.defaults, *call.attrs}:
            value = call.attr(name)
            if name in row.attrs:
                given[name] = bool(value) if isinstance(row.attrs[name], bool) else value
            elif not _same(value, call.defaults.get(name)):
                raise call.error(f"{name}={value!r} is not supported", "leave it at its default")
        return call.apply(row.name, *call.tensors(), **given)

    return convert


def _same(a: Any, b: Any) -> bool:
    return bool(np.all(a == b))


def add_rows(converters: Converters, rows: dict[str, OpRow]) -> None:
    """Add a converter for every operator that one row names and that has no converter yet."""
    named: dict[str, list[OpRow]] = {}
    for row in rows.values():
        for name in row.onnx:
            named.setdefault(name, []).append(row)
    for name, matches in named.items():
        if len(matches) == 1 and ("", name) not in converters.table:
            converters.op(name)(row_converter(matches[0]))
