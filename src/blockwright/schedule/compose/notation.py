"""The notation of `tile`: which loops there are, and which nest they shall become.

    notation = items "->" items
    items    = item (" " item)*
    item     = name | "..." | [name "="] "(" name+ ")"

Left of the arrow stand axes of the block by name; right of it the new loops, outermost first.

- `i -> i0 i1`: a name on the right that starts with the name of an axis is a factor of it; the
  longest such axis counts. Its factors nest as they come on the right. Digits at the end of an
  axis may change, `i1 j1 -> i2 j2 i3 j3`, and the factors of a sole axis may have any names.
- `i=(a b) -> a b`: `i` is split into `a` and `b`, which may have any names and any places.
- `f=(i j) -> f0 f1`: loops `i` and `j` are fused first. The name may be left out once,
  `(i j) -> f0 f1`: the fused loop then gets the factors that belong to no other axis.
- `i j -> g=(i0 j0) i1 j1`: on the right, loops in parentheses are fused in the end; without a name
  the loop is called after its parts.
- `...` on the right stands for all loops that are not named, in their order. Without it they keep
  their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from blockwright.support import ScheduleError

_TOKEN = re.compile(r"\s*(?:(->)|(\.\.\.)|([A-Za-z_]\w*)|([()=]))")
REST = "..."


class Group(msgspec.Struct, frozen=True):
    """`name=(a b)`; without a name, `(a b)`."""

    name: str | None
    parts: tuple[str, ...]


Item = str | Group


class Notation(msgspec.Struct, frozen=True):
    """A notation that has been read: items left and right of the arrow."""

    text: str
    left: tuple[Item, ...]
    right: tuple[Item, ...]

    def results(self) -> list[str]:
        """The names on the right, those in parentheses too."""
        return [name for item in self.right for name in members(item)]


def members(item: Item) -> tuple[str, ...]:
    """The names that an item is made of."""
    return item.parts if isinstance(item, Group) else (item,)


def read_notation(text: str) -> Notation:
    """The notation of a text; fails with the place where it stops making sense."""
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        matches = _TOKEN.match(text, at)
        if matches is None:
            raise wrong(text, f"there is no reading {text[at:].strip()[0]!r}")
        tokens.append(matches.group(matches.lastindex or 0))
        at = matches.end()
    if tokens.count("->") != 1:
        raise wrong(text, "there is not exactly one '->'")
    arrow = tokens.index("->")
    left, right = _items(text, tokens[:arrow]), _items(text, tokens[arrow + 1 :])
    if not left or not right:
        raise wrong(text, "one side is empty")
    if REST in left:
        raise wrong(text, "'...' stands on the left; loops that are not named are meant anyway")
    result = Notation(text, left, right)
    for names in (_existing(left), result.results()):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise wrong(text, f"{', '.join(twice)} stands twice on one side")
    return result


def _existing(left: Iterable[Item]) -> list[str]:
    return [name for item in left for name in members(item)]


def _items(text: str, tokens: list[str]) -> tuple[Item, ...]:
    result: list[Item] = []
    rest = list(tokens)
    while rest:
        name: str | None = rest.pop(0)
        if name in ("=", ")"):
            raise wrong(text, f"{name!r} stands where a name or '(' should")
        if name != "(" and not (rest and rest[0] == "="):
            result.append(str(name))
            continue
        if name == "(":
            name = None
        else:
            rest.pop(0)
            if not rest or rest.pop(0) != "(":
                raise wrong(text, f"'{name}=' is not followed by '('")
        if ")" not in rest:
            raise wrong(text, "a '(' is never closed")
        close = rest.index(")")
        parts, rest = rest[:close], rest[close + 1 :]
        if not parts or any(not part.isidentifier() for part in parts):
            raise wrong(text, "parentheses hold names and nothing else")
        result.append(Group(name, tuple(parts)))
    return tuple(result)


def factors_of(notation: Notation, axes: Iterable[str], sole: bool) -> dict[str, list[str]]:
    """The names on the right by the axis they are factors of; of a `sole` axis all of them.

    What fits no axis is found under the empty name.
    """
    longest = sorted(axes, key=len, reverse=True)
    explicit = {p for i in notation.left if isinstance(i, Group) for p in i.parts}
    result: dict[str, list[str]] = {}
    for name in notation.results():
        if name == REST or (name in explicit and name not in longest):
            continue
        result.setdefault(_axis_of(name, longest, sole), []).append(name)
    return result


def _axis_of(factor: str, longest: list[str], sole: bool) -> str:
    """The axis a factor is named after; empty when there is none or no single one."""
    exact = next((a for a in longest if factor.startswith(a)), "")
    if exact or not longest:
        return exact
    fitting = longest if sole else [a for a in longest if _stem(factor) == _stem(a)]
    return fitting[0] if len(fitting) == 1 else ""


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def wrong(text: str, why: str, help: str | None = None, code: str = "BW304") -> ScheduleError:
    """The error for a notation that cannot be read or does not fit."""
    return ScheduleError(
        f"{text!r}: {why}", code=code, help=help or "write it like 'i j k -> i0 j0 k0 i1 j1 k1'"
    )
