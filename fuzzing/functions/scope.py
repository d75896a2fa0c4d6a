"""Bodies of functions and branches: drawers inside another drawer, and running what they draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from fuzzing.graphs import movement, operators
from fuzzing.graphs.drawer import Drawer
from fuzzing.graphs.operands import OPERATORS
from fuzzing.graphs.program import Binding, Run, Value, checked

__all__ = ["Inner", "Outer", "Scope", "movement", "operators"]  # the latter register operators

_WORD = re.compile(r"[A-Za-z_]\w*")
Structure = Callable[["Scope"], None]
STRUCTURES: dict[str, Structure] = {}
"""Name of a structure → function that draws it into a scope."""


def structure(draw: Structure) -> Structure:
    STRUCTURES[draw.__name__] = draw
    return draw


class Scope(Drawer):
    """A drawer that can also draw structures.

    Attributes:
        depth: number of scopes around it; functions: texts of module functions by name, with those
            that each calls.
    """

    depth: int = 0
    functions: dict[str, str]

    def step(self, structures: float) -> None:
        """Draw one binding or, with that probability, a structure."""
        if self.depth < 3 and self.chance.random() < structures:
            STRUCTURES[self.chance.choice(list(STRUCTURES))](self)
            return
        names = list(OPERATORS)
        weights = [weight for _, weight in OPERATORS.values()]
        OPERATORS[self.chance.choices(names, weights)[0]][0](self)

    def steps(self, count: int, structures: float = 0.2) -> None:
        for _ in range(count):
            if self.values:
                self.step(structures)

    def fresh_function(self) -> str:
        name = f"f{len(self.functions)}"
        self.functions[name] = ""  # the number is taken, also while its body is drawn
        return name


class Outer(Scope):
    """The scope of `main`."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.functions = {}


class Inner(Scope):
    """A scope inside another: a branch, a nested function, or a function of the module.

    Args:
        run: sizes and values that it sees; values: the tensors among them.
    """

    def __init__(self, outer: Scope, run: Run, values: Iterable[Value]) -> None:
        self.outer = outer
        self.chance, self.numbers = outer.chance, outer.numbers
        self.run = run
        self.values = list(values)
        self.bindings = []
        self._symbols = outer._symbols  # pyright: ignore[reportPrivateUsage]
        self.functions = outer.functions
        self.depth = outer.depth + 1

    @property
    def count(self) -> int:
        return self.outer.count

    @count.setter
    def count(self, value: int) -> None:
        self.outer.count = value

    def lines(self) -> list[str]:
        return [line for b in self.bindings for line in b.text.split("\n")]

    def body(self) -> Body:
        return Body(tuple(self.bindings))


class Body(msgspec.Struct, frozen=True):
    """What a scope computes."""

    bindings: tuple[Binding, ...]

    def execute(self, run: Run) -> Run:
        """Run the bindings in order; their values are added to those of the run."""
        for binding in self.bindings:
            run.values[binding.name] = checked(binding.compute(run))
        return run


def child(run: Run) -> Run:
    """A run that sees the values of another, and binds its own."""
    return Run(run.sizes, run.values)


def renamed(dims: Sequence[str], names: dict[str, str]) -> tuple[str, ...]:
    """Dimensions with symbols replaced by expressions."""
    return tuple(
        _WORD.sub(lambda w: f"({names[w[0]]})" if w[0] in names else w[0], d) for d in dims
    )


def is_plain(value: Value) -> bool:
    """Whether the dimensions have no symbol of a checked cast."""
    return not any(re.search(r"\bs\d", d) for d in value.dims)


def indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]
