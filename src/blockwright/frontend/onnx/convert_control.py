"""Control flow: conditions known at import choose a branch; loops of known length are unrolled."""

from __future__ import annotations

from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.onnx.call import Call, Converters, Value, axis_of, dims_of, rank_of
from blockwright.frontend.onnx.sizes import array_of
from blockwright.support import ImporterError

TABLE = Converters()
_LONGEST = 1024  # iterations of a loop that is unrolled


def _depends(call: Call) -> frozenset[str]:
    empty: frozenset[str] = frozenset()
    return empty.union(*(call.imp.scope.depends(n) for n in call.node.input if n))


@TABLE.op("If")
def _if(call: Call) -> Value:
    condition = array_of(call.value(0))
    if condition is not None:
        name = "then_branch" if condition.reshape(()) else "else_branch"
        return call.imp.subgraph(call.attr(name), [], _depends(call))
    bodies = [call.attr("then_branch"), call.attr("else_branch")]

    def refused(reason: str) -> ImporterError:
        return call.unknown(0, f"the condition, {reason},")

    return call.imp.branches(call.reshape(call.tensor(0), ()), bodies, _depends(call), refused)


@TABLE.op("Loop")
def _loop(call: Call) -> Value:
    """A loop of a known number of iterations, each of which runs."""
    body = call.attr("body")
    count = int(call.known(0, "the number of iterations").reshape(())) if call.has(0) else _LONGEST
    condition = bool(call.known(1, "the condition").reshape(())) if call.has(1) else True
    if call.has(0) and count > _LONGEST:
        raise call.error(
            f"{count} iterations are too many to unroll", f"at most {_LONGEST}", "BW526"
        )
    carried = list(call.operands[2:])
    scans: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(carried))]
    step = 0
    while condition and step < count:
        given = [np.asarray(step, np.int64), np.asarray(True), *carried]
        again, *values = call.imp.subgraph(body, given, _depends(call))
        known = array_of(again)
        if known is None:
            raise call.error(
                "the number of iterations is known only when the model runs",
                "make the condition of the body a constant",
                "BW526",
            )
        condition = bool(known.reshape(()))
        carried, parts = values[: len(carried)], values[len(carried) :]
        for kept, part in zip(scans, parts, strict=True):
            kept.append(part)
        step += 1
        if step >= _LONGEST and not call.has(0):
            raise call.error("the loop is too long to unroll", f"at most {_LONGEST}", "BW526")
    if not step and scans:
        raise call.error("a loop that never runs has scan outputs", "remove it", "BW526")
    return [*carried, *(_stacked(call, parts, 0) for parts in scans)]


def _stacked(call: Call, parts: list[Value], axis: int) -> ir.GraphExpr:
    """The parts along a new axis."""
    tensors: list[ir.GraphExpr] = []
    for part in parts:
        tensor = call.imp.tensor(part)
        dims: list[Any] = list(dims_of(tensor))
        dims.insert(axis, 1)
        tensors.append(call.reshape(tensor, dims))
    return tensors[0] if len(tensors) == 1 else call.apply("concat", *tensors, axis=axis)


@TABLE.op("Scan", since=9)
def _scan(call: Call) -> Value:
    """A body for each slice of the scanned operands, which have a known length."""
    body, inputs = call.attr("body"), call.attr("num_scan_inputs")
    carried = list(call.operands[: len(call.operands) - inputs])
    scanned = call.tensors()[len(carried) :]
    outputs = len(body.output) - len(carried)
    axes_in = call.attr("scan_input_axes", (0,) * inputs)
    axes_out = call.attr("scan_output_axes", (0,) * outputs)
    backward_in = call.attr("scan_input_directions", (0,) * inputs)
    backward_out = call.attr("scan_output_directions", (0,) * outputs)
    axes = [axis_of(a, rank_of(x)) for a, x in zip(axes_in, scanned, strict=True)]
    length = ir.const_int(dims_of(scanned[0])[axes[0]])
    if length is None or length > _LONGEST:
        raise call.error(
            "the number of iterations is not known or too large to unroll",
            "declare the size of the scanned axis",
            "BW526",
        )
    kept: list[list[Value]] = [[] for _ in range(outputs)]
    for step in range(length):
        slices: list[Value] = []
        for x, axis, backward in zip(scanned, axes, backward_in, strict=True):
            at = length - 1 - step if backward else step
            part = call.apply("slice", x, axis=axis, begin=at, end=at + 1, step=1)
            slices.append(call.reshape(part, [d for k, d in enumerate(dims_of(x)) if k != axis]))
        values = call.imp.subgraph(body, [*carried, *slices], _depends(call))
        carried = values[: len(carried)]
        for parts, value in zip(kept, values[len(carried) :], strict=True):
            parts.append(value)
    results: list[Value] = []
    for parts, axis, backward in zip(kept, axes_out, backward_out, strict=True):
        rank = rank_of(call.imp.tensor(parts[0])) + 1
        results.append(_stacked(call, parts[::-1] if backward else parts, axis_of(axis, rank)))
    return [*carried, *results]
