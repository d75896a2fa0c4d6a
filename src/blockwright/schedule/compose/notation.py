"""Parse the notation of `tile`, which maps the current loops to a new nest.

    notation = items "->" items
    items    = item (" " item)*
    item     = name | "..." | [name "="] "(" name+ ")"

The left side lists axes of the block by name; the right side lists the new loops, outermost first.

- `i -> i0 i1`: a name on the right that starts with the name of an axis is a factor of that axis;
  the longest matching axis wins. Factors of an axis nest in the order of the right side. The digits
  at the end of an axis name may change, `i1 j1 -> i2 j2 i3 j3`. If there is only one axis, its
  factors may have any names.
- `i=(a b) -> a b`: `i` is split into `a` and `b`, which may have any names and positions.
- `f=(i j) -> f0 f1`: loops `i` and `j` are fused first. One fused loop may be unnamed,
  `(i j) -> f0 f1`: it gets the factors that belong to no other axis.
- `i j -> g=(i0 j0) i1 j1`: loops in parentheses on the right are fused last; without a name the
  fused loop is named after its parts.
- `...` on the right stands for all loops not named, in their current order. Without it they keep
  their positions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from blockwright.support import ScheduleError

_TOKEN = re.compile(r"\s*(?:(->)|(\.\.\.)|([A-Za-z_]\w*)|([()=]))")
REST = "..."


class Group(msgspec.Struct, frozen=True):
    """A parenthesized item: `name=(a b)`, or `(a b)` without a name."""

    name: str | None
    parts: tuple[str, ...]


Item = str | Group


class Notation(msgspec.Struct, frozen=True):
    """A parsed notation: the items left and right of the arrow."""

    text: str
    left: tuple[Item, ...]
    right: tuple[Item, ...]

    def results(self) -> list[str]:
        """Return the names on the right, including those in parentheses."""
        return [name for item in self.right for name in members(item)]


def members(item: Item) -> tuple[str, ...]:
    """Return the names in an item."""
    return item.parts if isinstance(item, Group) else (item,)


def read_notation(text: str) -> Notation:
    """Parse a notation; raises ScheduleError with the reason if it is malformed."""
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        matches = _TOKEN.match(text, at)
        if matches is None:
            raise wrong(text, f"unexpected character {text[at:].strip()[0]!r}")
        tokens.append(matches.group(matches.lastindex or 0))
        at = matches.end()
    if tokens.count("->") != 1:
        raise wrong(text, "expected exactly one '->'")
    arrow = tokens.index("->")
    left, right = _items(text, tokens[:arrow]), _items(text, tokens[arrow + 1 :])
    if not left or not right:
        raise wrong(text, "one side is empty")
    if REST in left:
        raise wrong(text, "'...' is not allowed on the left; unnamed loops are implied")
    result = Notation(text, left, right)
    for names in (_existing(left), result.results()):
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise wrong(text, f"{', '.join(twice)} occurs twice on one side")
    return result


def _existing(left: Iterable[Item]) -> list[str]:
    return [name for item in left for name in members(item)]


def _items(text: str, tokens: list[str]) -> tuple[Item, ...]:
    result: list[Item] = []
    rest = list(tokens)
    while rest:
        name: str | None = rest.pop(0)
        if name in ("=", ")"):
            raise wrong(text, f"expected a name or '(', got {name!r}")
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
            raise wrong(text, "parentheses must contain names only")
        result.append(Group(name, tuple(parts)))
    return tuple(result)


def factors_of(notation: Notation, axes: Iterable[str], sole: bool) -> dict[str, list[str]]:
    """Group the names on the right by the axis they are factors of.

    If the axis is the `sole` one, all names are its factors. Names that match no axis are listed
    under the empty name.
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
    """Return the axis that a factor is named after; empty if none or several match."""
    exact = next((a for a in longest if factor.startswith(a)), "")
    if exact or not longest:
        return exact
    fitting = longest if sole else [a for a in longest if _stem(factor) == _stem(a)]
    return fitting[0] if len(fitting) == 1 else ""


def _stem(name: str) -> str:
    return name.rstrip("0123456789")


def wrong(text: str, why: str, help: str | None = None, code: str = "BW304") -> ScheduleError:
    """Return the error for a notation that is malformed or does not match the nest."""
    return ScheduleError(
        f"{text!r}: {why}", code=code, help=help or "write it like 'i j k -> i0 j0 k0 i1 j1 k1'"
    )
