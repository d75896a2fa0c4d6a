"""Functions of the `I` dialect for the body of a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from blockwright.graph.devices import DEVICES, declared_devices
from blockwright.ir import IRModule
from blockwright.script.relax.values import named_array
from blockwright.support import ScriptError, ValidationError

__all__ = ["constant", "module_attrs", "module_global_infos", "vdevice"]


def module_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the module."""
    return dict(attrs)


def module_global_infos(infos: Mapping[str, Any]) -> dict[str, Any]:
    """What all functions of the module share: `{"vdevice": [I.vdevice("llvm")]}`, its devices."""
    return dict(infos)


def vdevice(target: Any, vdevice_id: int = 0, memory_scope: str = "global") -> dict[str, Any]:
    """A device: its target, its number on the machine, and the memory where values lie.

    Annotations name it by its kind and its position among the devices of that kind: "cpu:1".
    Arguments: `target` is a name, or a mapping with "kind"; "llvm" is what the module is compiled
    for.
    """
    name: Any = (
        cast("Mapping[str, Any]", target).get("kind") if isinstance(target, Mapping) else target
    )
    entry = {"target": name, "vdevice_id": vdevice_id, "memory_scope": memory_scope}
    try:
        declared_devices(IRModule({}, {DEVICES: [entry]}))
    except ValidationError as error:
        raise ScriptError(
            error.message, code="BW107", help="targets: llvm, x86-64-v3, cuda-sm_90, …"
        ) from error
    return entry


def constant(key: str) -> Any:
    """A named array that is passed separately from the script text."""
    return named_array(key)
