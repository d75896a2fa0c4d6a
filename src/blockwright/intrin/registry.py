"""Tensor intrinsics: a meaning and an implementation, both tensor programs on the same buffers.

`tensorize` replaces a computation that matches the meaning by the implementation. Families make
intrinsics from their names on demand, so that a trace that names one replays anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import msgspec

from blockwright import ir
from blockwright.support import IRError
from blockwright.target.scopes import declare_scopes

Family = Callable[[str], "TensorIntrin | None"]


class TensorIntrin(msgspec.Struct, frozen=True, eq=False):
    """A named pair of programs.

    Attributes:
        name: what `tensorize` is given.
        meaning: loops around one block with one store; says what is computed.
        implementation: its root block's body takes the place of what matched.
    """

    name: str
    meaning: ir.PrimFunc
    implementation: ir.PrimFunc

    _known: ClassVar[dict[str, TensorIntrin]] = {}
    _families: ClassVar[list[Family]] = []

    @staticmethod
    def register(
        name: str, meaning: ir.PrimFunc, implementation: ir.PrimFunc, override: bool = False
    ) -> TensorIntrin:
        """Make an intrinsic known by its name.

        Raises:
            IRError: the name is taken, or the programs' parameters do not agree.
        """
        if name in TensorIntrin._known and not override:
            raise IRError(
                f"tensor intrinsic {name!r} is already registered",
                code="BW247",
                help="choose another name or pass override=True",
            )
        intrin = TensorIntrin(name, meaning, implementation)
        _check(intrin)
        declare_scopes(b.scope for f in (meaning, implementation) for b in ir.collect(f, ir.Buffer))
        TensorIntrin._known[name] = intrin
        return intrin

    @staticmethod
    def get(name: str) -> TensorIntrin:
        """The intrinsic of a name, made by its family when it is not registered.

        Raises:
            IRError: nobody knows the name.
        """
        result = TensorIntrin._known.get(name)
        if result is not None:
            return result
        for family in TensorIntrin._families:
            created = family(name)
            if created is not None:
                return TensorIntrin.register(name, created.meaning, created.implementation)
        known = ", ".join(sorted(TensorIntrin._known)) or "none"
        raise IRError(
            f"no tensor intrinsic {name!r}",
            code="BW220",
            help=f"registered: {known}; TensorIntrin.register makes one known",
        )

    @staticmethod
    def add_family(family: Family) -> None:
        """Let `family` make intrinsics from names; it returns None for names not its own."""
        TensorIntrin._families.append(family)


def _check(intrin: TensorIntrin) -> None:
    """Parameters agree in number, rank and type, and the meaning is one store in loops."""
    a, b = intrin.meaning.buffers, intrin.implementation.buffers
    same = len(a) == len(b) and all(
        x.ndim == y.ndim and x.dtype is y.dtype for x, y in zip(a, b, strict=True)
    )
    if not same:
        raise IRError(
            f"tensor intrinsic {intrin.name!r}: meaning and implementation take different buffers",
            code="BW248",
            help="same number, ranks and types in the same order",
        )
    leaves = ir.blocks(intrin.meaning.root.body)
    if len(leaves) != 1 or not isinstance(leaves[0].body, ir.BufferStore):
        raise IRError(
            f"tensor intrinsic {intrin.name!r}: the meaning must be loops around one "
            "block with one store",
            code="BW248",
        )
