"""tile: rebuild the loop nest of a block from a notation of the new nest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec

from blockwright import ir
from blockwright.schedule.compose.axes import Axes
from blockwright.schedule.compose.notation import (
    REST,
    Group,
    Notation,
    factors_of,
    read_notation,
    wrong,
)
from blockwright.schedule.engine.handle import BlockRV, LoopRV
from blockwright.schedule.engine.state import explained

if TYPE_CHECKING:
    from blockwright.schedule.compose.methods import Compose

Size = int | ir.Expr
"""The size of a factor: a number, a sampled number, a symbol, or an expression of them."""


class _Cut(msgspec.Struct, frozen=True):
    """One axis: the loops fused into it, if any, and the factors it is split into."""

    name: str
    fused: tuple[str, ...]
    factors: tuple[str, ...]


def tile(sch: Compose, block: BlockRV, axes: Axes, text: str, sizes: Mapping[str, Size]) -> Axes:
    """Transform the nest of a block to match a notation: fuse, split, reorder, and fuse again."""
    notation = read_notation(text)
    cuts = _cuts(notation, axes)
    _require_known_sizes(notation, cuts, sizes)
    nest = _Nest(sch, axes)
    for cut in cuts:
        if cut.fused:
            nest.fuse([axes[name] for name in cut.fused], cut.name)
    for cut in cuts:
        loop = nest.named[cut.name] if cut.fused else axes[cut.name]
        nest.cut(notation, loop, cut, sizes)
    nest.reorder(notation)
    for item in notation.right:
        if isinstance(item, Group):
            nest.fuse([nest.named.pop(part) for part in item.parts], fused_name(item))
    return nest.result(notation, f"block {sch.get(block).name}")


def _cuts(notation: Notation, axes: Axes) -> list[_Cut]:
    """Return the fused loops and the factors of each axis on the left."""
    matches: list[_Cut] = []
    open_groups = 0
    for item in notation.left:
        if not isinstance(item, Group):
            matches.append(_Cut(item, (), ()))
        elif item.name is not None and item.name in axes and any(p not in axes for p in item.parts):
            matches.append(_Cut(item.name, (), item.parts))
        else:
            open_groups += item.name is None
            matches.append(_Cut(item.name or "", item.parts, ()))
    _require_axes(notation, matches, axes)
    if open_groups > 1:
        raise wrong(notation.text, "only one fused loop may be unnamed", "write f=(i j) to name it")
    names = [cut.name for cut in matches if cut.name]
    factors = factors_of(notation, names, sole=len(matches) == 1)
    loose = factors.get("", [])
    result = [
        cut
        if cut.factors
        else msgspec.structs.replace(cut, factors=tuple(factors.get(cut.name, ())))
        for cut in matches
    ]
    if loose and not open_groups:
        raise wrong(
            notation.text,
            f"{', '.join(loose)} belongs to no axis on the left",
            f"start its name with the name of its axis ({', '.join(names)}), or list the "
            "factors: i=(a b) -> a b",
        )
    for cut in result:
        missing = [f for f in cut.factors if f not in notation.results()]
        if missing or not cut.factors:
            what = f"{', '.join(missing)} of axis" if missing else "axis"
            name = cut.name or f"({' '.join(cut.fused)})"
            raise wrong(
                notation.text,
                f"{what} {name} is missing on the right",
                "give every axis on the left a factor on the right",
            )
    return result


def _require_axes(notation: Notation, cuts: Sequence[_Cut], axes: Axes) -> None:
    """Require that every axis on the left exists and is named once."""
    seen: dict[LoopRV, str] = {}
    for name in (n for cut in cuts for n in cut.fused or (cut.name,)):
        first = seen.setdefault(axes[name], name)
        if first != name:
            raise wrong(
                notation.text, f"{first} and {name} are the same loop", "name each loop once"
            )


def _require_known_sizes(
    notation: Notation, cuts: Sequence[_Cut], sizes: Mapping[str, Size]
) -> None:
    """Require that sizes name factors, and that at most one factor per axis has no size."""
    factors = {f for cut in cuts for f in cut.factors}
    for name in sizes:
        if name not in factors:
            raise wrong(
                notation.text,
                f"{name}= is not the size of a factor",
                f"factors: {' '.join(f for cut in cuts for f in cut.factors)}",
            )
    for cut in cuts:
        unknown = [f for f in cut.factors if f not in sizes]
        if len(unknown) > 1:
            free, rest = unknown[0], unknown[1:]
            raise wrong(
                notation.text,
                f"axis {equation(cut, sizes)}: the sizes of "
                f"{', '.join(unknown)} are missing, and only one size can be inferred",
                f"give all but one of them: with {'=…, '.join(rest)}=… the call leaves "
                f"only {free}, whose size is inferred",
            )


def equation(cut: _Cut, sizes: Mapping[str, Size]) -> str:
    """Format an axis as the product of its factors, with the given sizes."""
    parts = [f if f not in sizes else f"({f}={sizes[f]})" for f in cut.factors]
    return f"{cut.name or ' '.join(cut.fused)} = {' * '.join(parts)}"


def fused_name(group: Group) -> str:
    """Return the name of the fused loop of a group on the right."""
    plain = "_".join(group.parts) + ("_fused" if len(group.parts) > 1 else "")
    return group.name or plain


class _Nest:
    """The loops around a block while they are rebuilt."""

    def __init__(self, sch: Compose, axes: Axes) -> None:
        self.sch = sch
        self.order = list(axes)
        self.named: dict[str, LoopRV] = {}

    def fuse(self, loops: list[LoopRV], name: str) -> None:
        """Fuse loops at the position of the first one; move loops between them inside."""
        at = [self.order.index(loop) for loop in loops]
        if at != list(range(at[0], at[0] + len(at))):
            first, last = min(at), max(at)
            between = [x for x in self.order[first : last + 1] if x not in loops]
            self.sch.reorder(*loops, *between)
            self.order[first : last + 1] = [*loops, *between]
        start = self.order.index(loops[0])
        same = len(loops) == 1 and self.sch.get(loops[0]).loop_var.name == name
        fused = loops[0] if same else self.sch.fuse(*loops, name=name or None)
        self.order[start : start + len(loops)] = [fused]
        self.named[name] = fused

    def cut(self, notation: Notation, loop: LoopRV, cut: _Cut, sizes: Mapping[str, Size]) -> None:
        """Split a loop into its named factors."""
        called = self.sch.get(loop).loop_var.name
        if cut.factors == (called,) and called not in sizes:
            self.named[called] = loop
            return
        factors = [sizes.get(f) for f in cut.factors]
        self._require_enough(notation, loop, cut, sizes)
        with explained(f"{notation.text!r}: axis {cut.name or called}"):
            parts = self.sch.split(loop, factors, names=cut.factors)
        at = self.order.index(loop)
        self.order[at : at + 1] = parts
        self.named.pop(cut.name, None)
        self.named.update(zip(cut.factors, parts, strict=True))

    def _require_enough(
        self, notation: Notation, loop: LoopRV, cut: _Cut, sizes: Mapping[str, Size]
    ) -> None:
        """Require that the product of the sizes covers the axis, if all are numbers."""
        extent = ir.const_int(self.sch.get(loop).extent)
        numbers = [n for f in cut.factors if isinstance(n := sizes.get(f), int)]
        product = prod(numbers)
        if extent is None or len(numbers) < len(cut.factors) or product >= extent:
            return
        leave = " or ".join(
            f"{f} (it becomes {-(-extent // (product // n))})"
            for f, n in zip(cut.factors, numbers, strict=True)
            if n > 0
        )
        raise wrong(
            notation.text,
            f"axis {equation(cut, sizes)} is {product}, the axis has {extent} iterations",
            f"omit the size of {leave}, or add a factor without a size",
            code="BW318",
        )

    def reorder(self, notation: Notation) -> None:
        """Put the loops on the right into their order; the others keep their positions."""
        names = notation.results()
        chosen = [self.named[name] for name in names if name != REST]
        others = [loop for loop in self.order if loop not in chosen]
        wanted: list[LoopRV] = []
        for name in names:
            wanted += others if name == REST else [self.named[name]]
        moving = iter(wanted)
        order = [next(moving) if loop in wanted else loop for loop in self.order]
        if order != self.order:
            self.sch.reorder(*wanted)
            self.order = order

    def result(self, notation: Notation, where: str) -> Axes:
        """Return the loops on the right by name, in order."""
        matches: dict[str, LoopRV] = {}
        for item in notation.right:
            if isinstance(item, Group):
                matches[fused_name(item)] = self.named[fused_name(item)]
            elif item != REST:
                matches[item] = self.named[item]
        return Axes(matches, where)
