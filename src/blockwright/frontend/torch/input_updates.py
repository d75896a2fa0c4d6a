"""Write new values of inputs that a model changes in place.

`torch.export` returns the new value of each such input as an additional result. Here it is copied
into the memory of the parameter, by `call_tir_inplace`; a result of the model that is the input is
the updated parameter.
"""

from __future__ import annotations

from collections.abc import Iterable

from blockwright import ir
from blockwright.frontend.torch.memory_format import counted
from blockwright.graph import GraphBuilder
from blockwright.ir.attributes import IS_PRIVATE
from blockwright.passes.copies import copy_program


class InputUpdates:
    """Parameters of a graph function that is being built, and the programs that write them.

    Attributes:
        programs: tensor programs of the calls, by name.
        stored: updated value → the same value with its axes in storage order.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.programs: dict[str, ir.PrimFunc] = {}
        self.stored: dict[ir.GraphExpr, ir.GraphVar] = {}
        self._kept: dict[ir.GraphExpr, ir.GraphVar] = {}
        self._params: dict[str, tuple[ir.GraphVar, tuple[int, ...]]] = {}

    def parameter(self, name: str, param: ir.GraphVar, order: tuple[int, ...]) -> None:
        """Note the parameter of an input; `order` is its storage order, empty for the default."""
        self._params[name] = param, order

    def keep(self, value: ir.GraphExpr, changed: Iterable[str]) -> ir.GraphExpr:
        """A copy of a value that is a parameter about to be overwritten; other values as they are.

        Arguments: `changed` names the inputs that the model changes.
        """
        overwritten = [self._params[name][0] for name in changed]
        if not any(value is param for param in overwritten):
            return value
        if value not in self._kept:
            info = value.tensor_info
            func = copy_program(info)
            name = f"copy_{len(self.programs)}"
            self.programs[name] = func.replace(attrs={**func.attrs, "global_symbol": name})
            operands = ir.TupleExpr((value,), info=ir.TupleInfo((info,)))
            operator = ir.OpRef("call_tir")
            call = ir.GraphCall(operator, (ir.GlobalVar(name), operands), {}, (info,), info=info)
            self._kept[value] = self.builder.emit(call, "kept")
        return self._kept[value]

    def write(self, name: str, value: ir.GraphExpr) -> ir.GraphExpr:
        """Overwrite the parameter of an input with a value; returns the updated input."""
        param, order = self._params[name]
        if value is param:
            return value
        stored = self.builder.op("permute_dims", value, axes=order) if order else value
        updated = self._copied(param, stored)
        if not order:
            return updated
        logical = self.builder.op("permute_dims", updated, axes=counted(order))
        self.stored[logical] = updated
        return logical

    def _copied(self, param: ir.GraphVar, value: ir.GraphExpr) -> ir.GraphVar:
        info = param.tensor_info
        func = copy_program(info)
        source, old = func.buffer_map
        name = f"overwrite_{param.name}"
        attrs = {"global_symbol": name, IS_PRIVATE: True}
        self.programs[name] = func.replace(
            params=(old[0], source[0], *func.params[2:]), buffer_map=(old, source), attrs=attrs
        )
        operands = ir.TupleExpr((param, value), info=ir.TupleInfo((info, value.tensor_info)))
        call = ir.GraphCall(
            ir.OpRef("call_tir_inplace"),
            (ir.GlobalVar(name), operands),
            {"inplace_indices": (0,)},
            (info,),
            info=info,
        )
        return self.builder.emit(call, f"{param.name}_new")
