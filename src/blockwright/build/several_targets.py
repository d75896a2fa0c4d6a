"""One library for several targets: the code of each, and the constants that they share.

The code of a target is what a build for that target alone makes, and it calls no other code: which
target's code runs is decided once, when the library is loaded (`codegen.rt.choose_target`). What
all libraries need, such as the thread pool, is there once, for the base of the architecture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from blockwright.build.compile import Compiled, compile_support, segments_of
from blockwright.codegen.link.link import DataSegment, Image, LinkOptions, Part, link
from blockwright.codegen.rt.choose_target import choose_target_ir
from blockwright.runtime.artefact import suffix_of
from blockwright.support import ArtefactError, TargetError
from blockwright.target import Target
from blockwright.target.host import host_arch

_BASE = {"x86_64": "x86-64"}
"""Architecture → the target whose code all its processors run."""


class SharedLibrary(msgspec.Struct, frozen=True, eq=False):
    """What a library for several targets is linked from; see `link`."""

    objects: tuple[tuple[str, bytes], ...]
    options: LinkOptions
    segments: tuple[DataSegment, ...]
    parts: tuple[Part, ...]

    def image(self) -> Image:
        """The linked library with its constants."""
        return link(self.objects, self.options, self.segments, parts=self.parts)


def targets_of(given: Any) -> tuple[Target, ...]:
    """The targets that an argument names, the best first.

    One target is better than another if its vectors are wider, or else if it has more features;
    of equals the one that comes first.

    Raises: ArtefactError BW845 if they cannot share a library; TargetError as `Target`.
    """
    if isinstance(given, (str, Target)) or not isinstance(given, Sequence):
        return (Target(given),)
    targets = tuple(dict.fromkeys(Target(each) for each in cast("Sequence[Any]", given)))
    if not targets:
        raise TargetError("there is no target", code="BW650", help='write target="native"')
    if len(targets) > 1:
        names = [target.name for target in targets]
        problem = ""
        if {host_arch(), *(target.arch for target in targets)} - _BASE.keys():
            problem = "all have to be x86-64 processors, and so has this machine"
        elif len(set(names)) < len(names):
            problem = f"two of them are named {max(names, key=names.count)}"
        if problem:
            raise ArtefactError(
                f"{', '.join(names)} cannot share a library: {problem}",
                code="BW845",
                help="compile for each of them on a machine of its kind, and save each result in a "
                "file of its own",
            )
    return tuple(sorted(targets, key=lambda t: (-t.vector_bits, -len(t.feature_set))))


def shared_library(several: Sequence[Compiled]) -> SharedLibrary:
    """Join the code of several targets, the best first; equal constants are stored once."""
    targets = [compiled.target for compiled in several]
    base = Target(_BASE[targets[0].arch])
    entries = [unit.entry for unit in several[0].units if unit.entry]
    text = choose_target_ir(entries, targets, base)
    units = [unit for compiled in several for unit in compiled.units]
    objects, hooks = compile_support(units, base, {"blockwright.choose_target": text})
    constants: dict[str, Any] = {}
    stored: dict[tuple[int, bytes], str] = {}
    parts: list[Part] = []
    exports = [*entries, *hooks]
    for compiled in several:
        suffix = suffix_of(compiled.target.name)
        names: dict[str, str] = {}
        for symbol, array in compiled.constants.items():
            data = array.reshape(-1).view(np.uint8).data
            key = (data.nbytes, hashlib.blake2b(data).digest())
            names[symbol] = stored.setdefault(
                key, symbol + suffix if symbol in constants else symbol
            )
            constants.setdefault(names[symbol], array)
        parts.append(Part(compiled.unit_objects, suffix, names))
        exports += [unit.entry + suffix for unit in compiled.units if unit.entry]
    options = msgspec.structs.replace(several[0].options, exports=exports)
    return SharedLibrary(tuple(objects), options, segments_of(constants), tuple(parts))
