"""Look up the loops around a block by loop name or iterator name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from blockwright import ir
from blockwright.schedule.engine.handle import LoopRV
from blockwright.support import ScheduleError


class UnknownAxis(ScheduleError, AttributeError):
    """An axis looked up as an attribute does not exist; an `AttributeError`, for `hasattr`."""


class Axes:
    """Loops by name, outermost first: `axes.i0`, `axes["i0"]`, or `i0, j0 = axes`.

    Args:
        loops: the loops with unique names, by name, outermost first.
        where: description of the block or nest, for error messages.
        aliases: other names, such as those of block iterators.
        order: all loops, outermost first; default: those in `loops`.
        unclear: ambiguous names, shared by several loops.
    """

    def __init__(
        self,
        loops: Mapping[str, LoopRV],
        where: str,
        aliases: Mapping[str, LoopRV] | None = None,
        order: tuple[LoopRV, ...] | None = None,
        unclear: frozenset[str] = frozenset(),
    ) -> None:
        self._loops = dict(loops)
        self._where = where
        self._aliases = dict(aliases or {})
        self._order = tuple(loops.values()) if order is None else order
        self._unclear = unclear

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loops, outermost first."""
        return tuple(self._loops)

    def __getitem__(self, name: str) -> LoopRV:
        result = self._loops.get(name) or self._aliases.get(name)
        if result is not None:
            return result
        if name in self._unclear:
            raise ScheduleError(
                f"several loops around {self._where} are named {name!r}",
                code="BW303",
                help="select one of the loops that get_loops returns",
            )
        known = ", ".join([*self._loops, *sorted(self._aliases)]) or "none"
        raise ScheduleError(
            f"{self._where} has no axis {name!r}", code="BW302", help=f"its axes: {known}"
        )

    def __getattr__(self, name: str) -> LoopRV:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except ScheduleError as error:
            raise UnknownAxis.collect(error.diagnostics) from None

    def __contains__(self, name: object) -> bool:
        return name in self._loops or name in self._aliases

    def __iter__(self) -> Iterator[LoopRV]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={loop!r}" for name, loop in self._loops.items())
        return f"axes of {self._where}({inner})"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._loops, *self._aliases]


def axes_of(
    realize: ir.BlockRealize | None, block: ir.Block, loops: Mapping[LoopRV, ir.For]
) -> Axes:
    """Build the axes of a block.

    An axis is named after its loop. A block iterator bound to exactly one loop variable is an alias
    for that loop, unless a loop has the same name.
    """
    named: dict[str, LoopRV] = {}
    unclear: set[str] = set()
    for handle, loop in loops.items():
        name = loop.loop_var.name
        if name in named:
            unclear.add(name)
        named.setdefault(name, handle)
    for name in unclear:
        del named[name]
    of_var = {loop.loop_var: handle for handle, loop in loops.items()}
    aliases: dict[str, LoopRV] = {}
    values = () if realize is None else realize.iter_values
    for it, value in zip(block.iter_vars, values, strict=True):
        if isinstance(value, ir.Var) and value in of_var and it.var.name not in named:
            aliases[it.var.name] = of_var[value]
    return Axes(named, f"block {block.name}", aliases, tuple(loops), frozenset(unclear))
