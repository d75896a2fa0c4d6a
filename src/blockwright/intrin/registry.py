"""Registry of tensor intrinsics: a meaning and an implementation, both tensor programs.

Both programs have the same buffer parameters. `tensorize` replaces a computation that matches the
meaning with the implementation. Families build intrinsics from their names on demand, so that a
trace that names one replays in any process.
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
    """A tensor intrinsic: a named pair of programs.

    Attributes:
        name: the name passed to `tensorize`.
        meaning: the computation to match: loops around one block with one store.
        implementation: the program whose root block body replaces the matched computation.
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
        """Register an intrinsic under a name.

        Raises:
            IRError: the name is taken, the parameters of the programs differ, or the meaning is not
                loops around one block with one store.
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
        """Return the intrinsic of a name; a family creates it if it is not registered.

        Raises:
            IRError: the name is unknown.
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
            help=f"registered: {known}; TensorIntrin.register adds one",
        )

    @staticmethod
    def add_family(family: Family) -> None:
        """Add a function that builds intrinsics from names; it returns None for other names."""
        TensorIntrin._families.append(family)


def _check(intrin: TensorIntrin) -> None:
    """Require matching parameters (count, ranks, types) and a meaning with a single store."""
    a, b = intrin.meaning.buffers, intrin.implementation.buffers
    same = len(a) == len(b) and all(
        x.ndim == y.ndim and x.dtype is y.dtype for x, y in zip(a, b, strict=True)
    )
    if not same:
        raise IRError(
            f"tensor intrinsic {intrin.name!r}: meaning and implementation take different buffers",
            code="BW248",
            help="use the same number, ranks and types of buffers in the same order",
        )
    leaves = ir.blocks(intrin.meaning.root.body)
    if len(leaves) != 1 or not isinstance(leaves[0].body, ir.BufferStore):
        raise IRError(
            f"tensor intrinsic {intrin.name!r}: the meaning must be loops around one "
            "block with one store",
            code="BW248",
        )
