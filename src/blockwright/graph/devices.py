"""The devices that a module declares, and on which of them values lie.

`I.module_global_infos({"vdevice": [I.vdevice("x86-64-v3"), I.vdevice("x86-64-v4")]})` declares two
CPUs, which annotations call "cpu" and "cpu:1". Without a declaration, the only devices are those of
the target that the module is compiled for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from blockwright import ir
from blockwright.ir.device_names import DeviceName, canonical_device, device_name
from blockwright.support import TargetError, ValidationError
from blockwright.target import Target

DEVICES = "vdevice"
"""The module attribute that lists the devices."""

ANY_CPU = ("llvm", "native", "cpu", "c")
"""Targets of a declaration that stand for the target of the compilation."""


class DeclaredDevice(msgspec.Struct, frozen=True):
    """A device of a module: its target, its number on the machine and its memory space."""

    target: str
    vdevice_id: int = 0
    memory_scope: str = "global"

    @property
    def kind(self) -> str:
        """The kind of its target. Raises: TargetError BW650 if there is no such target."""
        if self.target in ANY_CPU:
            return "cpu"
        return "cuda" if self.target in ("cuda", "gpu") else Target(self.target).kind


def declared_devices(module: ir.IRModule | None) -> dict[str, DeclaredDevice]:
    """The devices of a module by name.

    Raises: ValidationError BW252 if the attribute is no list of devices.
    """
    listed: Any = () if module is None else module.attrs.get(DEVICES, ())
    result: dict[str, DeclaredDevice] = {}
    counts: dict[str, int] = {}
    try:
        for device in msgspec.convert(listed, list[DeclaredDevice]):
            number = counts.setdefault(device.kind, 0)
            result[str(DeviceName(device.kind, number, "global"))] = device
            counts[device.kind] += 1
    except (msgspec.ValidationError, TargetError) as error:
        raise ValidationError(
            f"the module attribute {DEVICES} is no list of devices: {error}",
            code="BW252",
            help='write I.module_global_infos({"vdevice": [I.vdevice("llvm")]})',
        ) from error
    return result


def device_problem(
    info: ir.Info, target: str | None, declared: dict[str, DeclaredDevice]
) -> tuple[str, str] | None:
    """Why a tensor cannot be on the device of an annotation, and the remedy.

    Args:
        target: the kind of the target, if known.
        declared: the devices of the module.
    """
    if not isinstance(info, ir.TensorInfo) or not info.device:
        return None
    name = device_name(info.device)
    if name is None:
        return f"unknown device {info.device!r}", "devices: cpu, cuda, also with a number"
    if name.space != "global":
        remedy = "only tensor programs have buffers elsewhere; leave it out"
        return f"values of graph functions lie in the memory space global, not {name.space}", remedy
    if declared:
        if canonical_device(info.device) in declared:
            return None
        listed = ", ".join(declared)
        return f"the module declares no device {info.device!r}", f"its devices: {listed}"
    if target is not None and name.kind != target:
        return (
            f"device {info.device!r} does not match the target {target}",
            "leave the device out of annotations, and move tensors to the target before a call; or "
            "declare the devices of the module (I.module_global_infos)",
        )
    return None


def devices_in(infos: Sequence[ir.Info | None]) -> list[str]:
    """The devices of annotated tensors, also of those in tuples, each once."""
    result: dict[str, None] = {}
    queue = list(infos)
    for info in queue:
        if isinstance(info, ir.TupleInfo):
            queue += info.fields
        elif isinstance(info, ir.TensorInfo) and info.device:
            result[canonical_device(info.device)] = None
    return list(result)


def on_device(info: ir.Info, device: str) -> ir.Info:
    """The annotation with its tensors on a device, except those that are on another."""
    if isinstance(info, ir.TupleInfo):
        return ir.TupleInfo(tuple(on_device(field, device) for field in info.fields))
    if not device or not isinstance(info, ir.TensorInfo) or info.device:
        return info
    return info.replace(device=device)
