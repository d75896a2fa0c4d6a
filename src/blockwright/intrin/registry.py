"""Registry of tensor intrinsics: a meaning and an implementation, both tensor programs.

Both programs have the same buffer parameters. `tensorize` replaces a computation that matches the
meaning with the implementation. Families build intrinsics from their names on demand, so that a
trace that names one replays in any process.

An implementation is compared with its meaning when it is registered. The comparison belongs to the
verifier, which this package does not know: `verify.intrinsics` installs it by `compare_with`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import msgspec

from blockwright import ir
from blockwright.support import IRError
from blockwright.target.scopes import declare_scopes

Family = Callable[[str], "TensorIntrin | None"]


class IntrinVerdict(msgspec.Struct, frozen=True):
    """What is known about the implementation of an intrinsic; a refuted one is not registered.

    Attributes:
        verdict: "proved": it computes the meaning for all inputs; or "unknown".
        why: the method of a proof; otherwise what prevented it.
        tests: for "unknown", the number of inputs on which both programs agreed.
    """

    verdict: Literal["proved", "unknown"]
    why: str
    tests: int = 0

    def __str__(self) -> str:
        if self.verdict == "proved":
            return f"proved ({self.why})"
        tested = f"tested on {self.tests} inputs" if self.tests else "not tested"
        return f"unknown, {tested} ({self.why})"

    def __bool__(self) -> bool:
        return self.verdict == "proved"


Comparison = Callable[["TensorIntrin"], IntrinVerdict]


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
    _families: ClassVar[list[tuple[Family, bool]]] = []
    _verdicts: ClassVar[dict[TensorIntrin, IntrinVerdict]] = {}
    _comparison: ClassVar[list[Comparison]] = []
    _waiting: ClassVar[set[TensorIntrin]] = set()
    """Registered before the verifier was loaded; compared when first used."""

    @property
    def verdict(self) -> IntrinVerdict:
        """Whether the implementation is proved; computed on first use, then kept.

        Raises:
            IRError: BW262 if the implementation computes something else.
        """
        known = TensorIntrin._verdicts.get(self)
        if known is None:
            if not TensorIntrin._comparison:
                return IntrinVerdict("unknown", "the verifier is not loaded")
            known = TensorIntrin._comparison[-1](self)
            TensorIntrin._verdicts[self] = known
        return known

    @staticmethod
    def register(
        name: str, meaning: ir.PrimFunc, implementation: ir.PrimFunc, override: bool = False
    ) -> TensorIntrin:
        """Register an intrinsic under a name and compare its implementation with its meaning.

        Returns:
            The intrinsic; its `verdict` is "proved", or "unknown" with what the tests covered.

        Raises:
            IRError: the name is taken, the parameters of the programs differ, the meaning is not
                loops around one block with one store, or the implementation computes something
                else (BW262).
        """
        return TensorIntrin._add(TensorIntrin(name, meaning, implementation), override, True)

    @staticmethod
    def _add(intrin: TensorIntrin, override: bool, compare: bool) -> TensorIntrin:
        name = intrin.name
        if name in TensorIntrin._known and not override:
            raise IRError(
                f"tensor intrinsic {name!r} is already registered",
                code="BW247",
                help="choose another name or pass override=True",
            )
        _check(intrin)
        programs = (intrin.meaning, intrin.implementation)
        declare_scopes(b.scope for f in programs for b in ir.collect(f, ir.Buffer))
        if compare and TensorIntrin._comparison:
            _ = intrin.verdict
        elif compare:
            TensorIntrin._waiting.add(intrin)
        TensorIntrin._known[name] = intrin
        return intrin

    @staticmethod
    def get(name: str) -> TensorIntrin:
        """Return the intrinsic of a name; a family creates it if it is not registered.

        Raises:
            IRError: the name is unknown; BW262 as for `register`.
        """
        result = TensorIntrin._known.get(name)
        if result is not None:
            if result in TensorIntrin._waiting and TensorIntrin._comparison:
                _ = result.verdict
                TensorIntrin._waiting.discard(result)
            return result
        for family, compare in TensorIntrin._families:
            created = family(name)
            if created is not None:
                return TensorIntrin._add(created, False, compare)
        known = ", ".join(sorted(TensorIntrin._known)) or "none"
        raise IRError(
            f"no tensor intrinsic {name!r}",
            code="BW220",
            help=f"registered: {known}; TensorIntrin.register adds one",
        )

    @staticmethod
    def known() -> tuple[TensorIntrin, ...]:
        """The registered intrinsics, and those that families have created so far."""
        return tuple(TensorIntrin._known.values())

    @staticmethod
    def add_family(family: Family, *, compare: bool = True) -> None:
        """Add a function that builds intrinsics from names; it returns None for other names.

        Args:
            compare: whether an intrinsic is compared with its meaning when it is created. The
                families of this package, whose tests compare them, leave it to the first use of
                `verdict`: compilation creates many tiles.
        """
        TensorIntrin._families.append((family, compare))

    @staticmethod
    def compare_with(comparison: Comparison) -> None:
        """Install the comparison of implementation and meaning that `verdict` runs."""
        TensorIntrin._comparison[:] = [comparison]


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
