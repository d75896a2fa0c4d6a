"""The target of a program: the one that its attribute "target" names, or that of the build."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from blockwright.ir import PrimFunc
from blockwright.ir.attributes import TARGET
from blockwright.support import BuildError, TargetError
from blockwright.target.target import Target

_CPU_NAMES = ("llvm", "c", "cpu", "native")
"""Names of a CPU that say nothing of its kind."""


def target_of(func: PrimFunc, default: Target) -> Target:
    """The target that a program is compiled for in a build for `default`.

    A module may hold programs for different processors of one architecture:
    `T.func_attr({"target": "x86-64-v4"})`. Names such as "llvm" stand for the target of the build.

    Raises: BuildError BW602 if the attribute names no CPU of the architecture of `default`.
    """
    stated: object = func.attrs.get(TARGET)
    if isinstance(stated, Mapping):
        stated = cast("Mapping[str, object]", stated).get("kind")
    if not isinstance(stated, str) or not stated.split():
        return default
    name = stated.split()[0]
    if name in _CPU_NAMES or name.startswith(default.name):
        return default
    try:
        known = Target(name)
    except TargetError:
        if name.startswith(("x86", "aarch64")):  # a triple
            return default
        known = None
    if known is None or known.kind != "cpu" or known.arch != default.arch:
        raise BuildError(
            f'the attribute "target" of the program is {name}, and it is built for {default.name}',
            code="BW602",
            help="build it for that target, or remove the attribute",
        )
    return known
