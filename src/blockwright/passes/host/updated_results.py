"""Results that are parameters updated in place: the caller gets the argument itself."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright import ir
from blockwright.graph.updates import overwritten_arguments
from blockwright.ir.attributes import STATE
from blockwright.passes.host.liveness import Liveness
from blockwright.passes.rewrite import tir_args


def updated_results(
    function: ir.GraphFunction, live: Liveness, values: Sequence[ir.GraphExpr]
) -> dict[int, ir.GraphVar]:
    """Position of a result → the parameter that it is.

    State is not among them: such a result is a copy, which later calls do not change.
    """
    state = function.attrs.get(STATE, {})
    written = {
        live.root(tir_args(b.value)[index])
        for b in function.bindings
        if isinstance(b, ir.VarBinding)
        for index in overwritten_arguments(b.value).values()
    }
    result: dict[int, ir.GraphVar] = {}
    for position, value in enumerate(values):
        root = live.root(value)
        if root not in written or not isinstance(root, ir.GraphVar) or root not in function.params:
            continue
        if root.name in state:
            continue
        if ir.structural_equal(value.tensor_info.shape, root.tensor_info.shape):
            result[position] = root
    return result
