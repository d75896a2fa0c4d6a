"""Results of an entry: tensors, and FFI values that the code stores in slots."""

from __future__ import annotations

from collections.abc import Sequence

from blockwright.codegen.llvm import ffi
from blockwright.codegen.llvm.emitter import FunctionEmitter
from blockwright.codegen.llvm.ffi import ANY
from blockwright.codegen.llvm.values import Value, int_const
from blockwright.ir import PrimFunc, Var
from blockwright.ir.attributes import CALL_DEPTH, OBJECT_RESULTS

_SUCCESS = int_const(0, "i32")


class Objects:
    """The slots in which the code of an entry stores FFI values.

    A caller that lends memory for the tensors gets only these values.
    """

    def __init__(self, e: FunctionEmitter, func: PrimFunc) -> None:
        self.e, self.func = e, func
        self.positions: dict[str, int] = func.attrs.get(OBJECT_RESULTS, {})
        self.slots: dict[str, Value] = {}

    def hidden(self) -> dict[Var, Value]:
        """Arguments of the code that callers do not pass: slots, and the number of active calls."""
        e, result = self.e, dict[Var, Value]()
        for param in self.func.params:
            if param.name in self.positions:
                slot = ANY.allocate(e)
                slot.store("type", int_const(ffi.NONE))
                slot.store("value", 0)
                result[param] = self.slots[param.name] = slot.address
            elif param.name == self.func.attrs.get(CALL_DEPTH):
                result[param] = e.call("i32", "bw_call_depth", e.params[3])
        return result

    def release(self) -> None:
        """Empty the slots, after an error."""
        for slot in self.slots.values():
            self.e.call("void", "bw_object_clear", slot)

    def give(self, tensors: Sequence[Value], result: Value) -> None:
        """Return the tensor objects and the values in the slots, in the order of the results."""
        e = self.e
        taken = {position: self.slots[name] for name, position in self.positions.items()}
        if not taken and len(tensors) == 1:
            e.call("void", "bw_return_tensor", result, tensors[0])
        elif not tensors and len(taken) == 1:
            e.copy(result, next(iter(taken.values())), ANY.size)
        elif tensors or taken:
            self._give_all(tensors, taken, result)
        e.ret(_SUCCESS)

    def _give_all(self, tensors: Sequence[Value], taken: dict[int, Value], result: Value) -> None:
        e, count = self.e, len(tensors) + len(taken)
        values, rest = e.stack(ANY.size * count, 16), iter(tensors)
        order = sorted(taken) if not tensors else range(count)
        for number, position in enumerate(order):
            place = e.offset(values, ANY.size * number)
            if position in taken:
                e.copy(place, taken[position], ANY.size)
                continue
            packed = ANY.at(e, place)
            packed.store("type", int_const(ffi.TENSOR))
            packed.store("value", next(rest))
        e.ret(e.call("i32", "bw_return_tuple", result, values, int_const(count, "i32")))
