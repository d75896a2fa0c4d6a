"""RealizeDevices: turn hints into placement, and copy values between devices.

Before::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        a = R.exp(x)
        b = R.hint_on_device(a, device="cpu:1")
        c = R.sin(b)
        d = R.hint_on_device(a, device="cpu")
        e = R.cos(d)
        return c, e

After::

    @R.function
    def main(x: R.Tensor((4,), "float32")):
        x_1 = R.to_vdevice(x, dst_vdevice="cpu:1")
        a = R.exp(x_1)
        c = R.sin(a)
        d = R.to_vdevice(a, dst_vdevice="cpu")
        e = R.cos(d)
        return c, e

A value is on the device that its annotation states. If it states none, an operator is computed

- where an operand is that is on a device;
- or else where its first consumer is that is on a device, or a hint wants it.

Parameters without a device are on the host, constants everywhere. A value is copied if a consumer
is on another device, and every consumer there uses the same copy. Values without any relation to a
device stay without.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.graph.devices import devices_in, on_device
from blockwright.ir.device_names import canonical_device
from blockwright.ops.device import DESTINATION, HINT, TO_DEVICE
from blockwright.ops.table import OPERATORS
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import (
    Replace,
    called_operator,
    flat_function,
    map_graph_functions,
    unique_name,
    used_vars,
)

PROGRAM_CALLS = ("call_tir", "call_tir_inplace", "call_dps_library")


@graph_pass
def realize_devices(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Place the values of every graph function that mentions a device."""

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        if not mentions_device(function):
            return function
        placer = _Placer(function)
        result = placer.run()
        lines = [f"{name}: {line}" for line in placer.copied]
        ctx.decisions.setdefault("realize_devices", []).extend(lines)
        return result

    return map_graph_functions(module, one)


def mentions_device(function: ir.GraphFunction) -> bool:
    """Whether an annotation of the function states a device."""
    infos: list[ir.Info | None] = [p.info for p in function.params]
    infos += [b.var.info for b in function.bindings if isinstance(b, (ir.VarBinding, ir.MatchCast))]
    return bool(devices_in([*infos, function.ret_info]))


def device_of(value: ir.Node) -> str:
    """The device of a value; "" for the host, and for several values on different ones."""
    found = devices_in([value.info]) if isinstance(value, ir.GraphExpr) else []
    return found[0] if len(found) == 1 else ""


def _computes(operator: str) -> bool:
    """Whether an operator computes its result on a device, where its operands have to be."""
    return operator != TO_DEVICE and (operator in OPERATORS or operator in PROGRAM_CALLS)


class _Placer:
    """Places the values of one function. Attributes: `copied` says which values are copied."""

    def __init__(self, function: ir.GraphFunction) -> None:
        self.function = function
        self.values: dict[ir.Node, ir.Node] = {}
        self.replace = Replace(self.values)
        self.bindings: list[ir.Binding] = []
        self.copies: dict[tuple[ir.GraphVar, str], ir.GraphVar] = {}
        self.names = {v.name for v in ir.collect(function, ir.GraphVar)}
        self.copied: list[str] = []

    def run(self) -> ir.GraphFunction:
        wanted = _wanted(self.function)
        for binding in self.function.bindings:
            operator = called_operator(getattr(binding, "value", None))
            if operator == HINT:
                self._hint(binding)
            elif _computes(operator):
                self._compute(binding, wanted)
            else:
                self.bindings.append(binding.map_children(self.replace))
        result = self.replace(self.function.body.body)
        stated = devices_in([self.function.ret_info])
        if len(stated) == 1 and isinstance(result, ir.GraphVar):
            result = self._on(result, stated[0])
        function = flat_function(self.function, self.bindings, result)
        return function.replace(ret_info=result.info or self.function.ret_info)

    def _hint(self, binding: ir.Binding) -> None:
        assert isinstance(binding, ir.VarBinding)
        value = self.replace(binding.value)
        device = canonical_device(str(value.attrs[DESTINATION[HINT]]))
        self.values[binding.var] = self._on(value.args[0], device, binding.var)

    def _compute(self, binding: ir.Binding, wanted: dict[ir.GraphVar, str]) -> None:
        assert isinstance(binding, ir.VarBinding)
        value = self.replace(binding.value)
        operands = [device_of(v) for v in used_vars(value)]
        device = device_of(binding.var) or next(filter(None, operands), "")
        device = device or wanted.get(binding.var, "")
        if device:
            placed: dict[ir.Node, ir.Node] = {v: self._on(v, device) for v in used_vars(value)}
            value = Replace(placed)(value)
        info = None if binding.var.info is None else on_device(binding.var.info, device)
        var = binding.var
        if info is not None and device_of(var) != device:
            var = var.replace(info=info)
            self.values[binding.var] = var
            outs = tuple(on_device(out, device) for out in value.out_info)
            value = value.replace(info=info, out_info=outs)
        self.bindings.append(binding.replace(var=var, value=value))

    def _on(self, value: ir.GraphExpr, device: str, var: ir.GraphVar | None = None) -> ir.GraphExpr:
        """The value on a device; a copy is bound to `var`, or to a new variable."""
        tensor = isinstance(value.info, ir.TensorInfo)
        if not isinstance(value, ir.GraphVar) or not tensor or device_of(value) == device:
            return value
        known = self.copies.get((value, device))
        if known is None:
            attrs = {DESTINATION[TO_DEVICE]: device}
            info = value.tensor_info.replace(device=device)
            call = ir.GraphCall(ir.OpRef(TO_DEVICE), (value,), attrs, info=info)
            named = var or ir.GraphVar(unique_name(value.name, self.names), True)
            known = named.replace(info=info)
            self.bindings.append(ir.VarBinding(known, call))
            self.copies[value, device] = known
            self.copied.append(
                f"{value.name}: copied from {device_of(value) or 'host'} to {device}"
            )
        return known


def _wanted(function: ir.GraphFunction) -> dict[ir.GraphVar, str]:
    """Where the first consumer on a device wants the values that state no device."""
    result: dict[ir.GraphVar, str] = {}
    for binding in reversed(function.bindings):
        operator = called_operator(getattr(binding, "value", None))
        if not _computes(operator):
            continue
        assert isinstance(binding, ir.VarBinding)
        device = device_of(binding.var) or result.get(binding.var, "")
        if device:
            for operand in used_vars(binding.value):
                if not device_of(operand):
                    result[operand] = device
    return result
