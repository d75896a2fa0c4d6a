"""Operators that an importer does not cover: the user's choice, the calls, and the report."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.runtime.frameworks.call import OperatorCall
from blockwright.support import BlockwrightWarning

Fallback = Literal["framework", "error"]
CHOICES: tuple[Fallback, ...] = ("framework", "error")

FALLBACKS = "fallbacks"
"""Module attribute: operator → the places in the model where the framework computes it."""

_PLACES = 3  # shown of each operator


class FallbackOperator(msgspec.Struct, frozen=True):
    """An operator that the framework computes in a compiled model.

    Attributes: its `name`, and `places`: for each use, the node and the model's source line.
    """

    name: str
    places: tuple[str, ...]

    @property
    def uses(self) -> int:
        """How often the model calls it."""
        return len(self.places)

    def __str__(self) -> str:
        lines = list(dict.fromkeys(self.places))
        more = [f"and {len(lines) - _PLACES} more"] if len(lines) > _PLACES else []
        return "\n    ".join((f"{self.name} ({self.uses} uses)", *lines[:_PLACES], *more))


def fallbacks(module: ir.IRModule) -> tuple[FallbackOperator, ...]:
    """The operators of an imported model that the framework computes, by name."""
    found: Mapping[str, Sequence[str]] = module.attrs.get(FALLBACKS, {})
    return tuple(FallbackOperator(name, tuple(places)) for name, places in sorted(found.items()))


def warn_of_fallbacks(module: ir.IRModule, stacklevel: int) -> None:
    """Warn once (BW513) about all operators that the framework computes, if there are any."""
    found = fallbacks(module)
    if not found:
        return
    listed = "".join(f"\n  {operator}" for operator in found)
    message = f"{len(found)} operators are not covered, and run in the framework:{listed}"
    help = 'options={"fallback": "error"} makes this an error; see docs/fallback.md'
    warning = BlockwrightWarning(message, code="BW513", help=help)
    warnings.warn(warning, stacklevel=stacklevel + 1)


_ANY = ir.ObjectInfo()


def framework_results(
    builder: GraphBuilder,
    name: str,
    function: str,
    inputs: Sequence[ir.GraphExpr],
    call: OperatorCall,
    numbers: Sequence[ir.Expr],
    infos: Sequence[ir.TensorInfo],
) -> list[ir.GraphVar]:
    """Emit a call of a framework's operator; return its results, which have these annotations.

    Arguments: `name` is that of the values, `function` of the operator, `numbers` are sizes that it
        takes. Symbols of results that are `call.late` may be new: casts bind them to the sizes.
    """
    attrs: dict[str, Any] = {"call": call.text()}
    attrs |= {f"size{k}": number for k, number in enumerate(numbers)}
    callee = ir.ExternFunc(function)
    if call.late is None:
        args = (callee, ir.TupleExpr(tuple(inputs)))
        value = ir.GraphCall(ir.OpRef("call_dps_library"), args, attrs, tuple(infos))
        found = builder.emit(value, name)
        return [found] if len(infos) == 1 else _fields(builder, found, name)
    value = ir.GraphCall(ir.OpRef("call_packed"), (callee, *inputs), attrs)
    if not infos:
        builder.emit(value.replace(out_info=(_ANY,)), name)
        return []
    pairs = list(zip(infos, call.late, strict=True))
    dims = tuple(dim for info, unknown in pairs if unknown for dim in info.shape or ())
    count = ir.TensorInfo((ir.const(len(dims), "int64"),), ir.dtype_of("int64"), 1)
    stated = ir.TupleInfo((*(_ANY if unknown else info for info, unknown in pairs), count))
    found = builder.emit(value.replace(out_info=(stated,)), name)
    *values, sizes = _fields(builder, found, name)
    loaded = builder.op("tensor_to_shape", sizes)
    builder.match_cast(loaded, ir.ShapeInfo(dims), "sizes")
    return [
        builder.match_cast(value, info, name) if unknown else value
        for value, (info, unknown) in zip(values, pairs, strict=True)
    ]


def _fields(builder: GraphBuilder, found: ir.GraphVar, name: str) -> list[ir.GraphVar]:
    assert isinstance(found.info, ir.TupleInfo)
    return [
        builder.emit(ir.TupleGetItem(found, k, info=info), name)
        for k, info in enumerate(found.info.fields)
    ]
