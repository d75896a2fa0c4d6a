"""Names of devices in annotations: "cpu", "cpu:1", "cuda:0".

A name is a kind, the position of the device among the devices of its kind, and a memory space of
it; position 0 and the space "global" are left out. The empty name is the host.
"""

from __future__ import annotations

from typing import NamedTuple

KINDS = {"cpu": "cpu", "llvm": "cpu", "cuda": "cuda", "gpu": "cuda"}
"""Kind of a device as it may be written → kind of its target."""


class DeviceName(NamedTuple):
    """The parts of a name."""

    kind: str
    number: int
    space: str

    def __str__(self) -> str:
        space = "" if self.space == "global" else f":{self.space}"
        return f"{self.kind}:{self.number}{space}" if self.number or space else self.kind


def device_name(text: str) -> DeviceName | None:
    """The parts of a name; None if there is no such device."""
    kind, *rest = text.split(":")
    number = rest.pop(0) if rest else "0"
    space = rest.pop(0) if rest else "global"
    if rest or kind not in KINDS or not (number.isascii() and number.isdigit()) or not space:
        return None
    return DeviceName(KINDS[kind], int(number), space)


def canonical_device(text: str) -> str:
    """The shortest spelling: "llvm:0:global" becomes "cpu". Unknown names stay as they are."""
    known = device_name(text)
    return text if known is None else str(known)
