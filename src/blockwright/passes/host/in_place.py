"""Choose calls whose result overwrites an operand that nothing else needs.

Before:  x: 0..3, y: 3..5, y = call_tir(add, (x, b)), and binding 3 is the last one that reads x
After:   x and y are one place from 0 to 5; the kernel `add` is compiled for that

The kernel must read each element of the operand before it stores the element of the result there,
which `analysis.in_place` decides from its statements.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockwright import ir
from blockwright.analysis.in_place import overwritable_operands
from blockwright.arith.form import Poly
from blockwright.ir.attributes import IN_PLACE
from blockwright.passes.host.liveness import Liveness, defined_values
from blockwright.passes.rewrite import tir_args, tir_callee


class InPlace(msgspec.Struct):
    """Results that overwrite operands.

    Attributes:
        over: result → the operand in whose memory it is computed.
        kernels: called program → its parameters that may share memory (`IN_PLACE`).
    """

    over: dict[ir.GraphVar, ir.GraphVar] = {}
    kernels: dict[str, dict[str, int]] = {}

    def place_of(self, value: ir.GraphVar) -> ir.GraphVar:
        """The first of the values that are computed one over the other."""
        while value in self.over:
            value = self.over[value]
        return value


def in_place_calls(
    function: ir.GraphFunction,
    module: ir.IRModule,
    live: Liveness,
    sizes: Mapping[ir.GraphVar, Poly],
) -> InPlace:
    """The calls of a function that can overwrite an operand.

    Arguments: `sizes` holds the bytes of the values that the plan may place.
    """
    result = InPlace()
    allowed: dict[str, dict[int, tuple[int, ...]]] = {}
    for position, binding in enumerate(function.bindings):
        name = tir_callee(binding.value) if isinstance(binding, ir.VarBinding) else None
        if name is None or not isinstance(binding, ir.VarBinding) or binding.var in live.alias:
            continue
        roots = [live.root(arg) for arg in tir_args(binding.value)]
        outs = list(defined_values(live, binding))
        if name not in allowed:
            allowed[name] = _allowed(module[name], len(roots), len(outs))
        taken: set[ir.GraphExpr] = set()
        for number, out in enumerate(outs):
            for operand in allowed[name].get(len(roots) + number, ()):
                value = roots[operand]
                if (
                    not isinstance(value, ir.GraphVar)
                    or value in taken
                    or value in live.results
                    or live.last.get(value) != position
                    or roots.count(value) > 1
                    or out not in sizes
                    or sizes.get(value) is not sizes[out]
                ):
                    continue
                taken.add(value)
                result.over[out] = value
                places = result.kernels.setdefault(name, {})
                places[str(len(roots) + number)] = operand
                break
    return result


def _allowed(func: ir.PrimFunc, operands: int, results: int) -> dict[int, tuple[int, ...]]:
    """Position of each result of a program → positions of operands that it may overwrite."""
    place = {buffer: position for position, buffer in enumerate(func.buffers[:operands])}
    return {
        position: tuple(
            place[b] for b in overwritable_operands(func, func.buffers[position]) if b in place
        )
        for position in range(operands, operands + results)
    }


def marked(func: ir.PrimFunc, places: Mapping[str, int]) -> ir.PrimFunc:
    """The program, compiled for calls in which these parameters share memory."""
    known = func.attrs.get(IN_PLACE, {})
    return func.replace(attrs={**func.attrs, IN_PLACE: {**known, **places}})
