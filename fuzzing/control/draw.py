"""Random programs whose conditions, loop bounds, iterators and sizes read buffers that they write.

All buffers hold 64 numbers from 0 to 63, so every element is a valid index. A program is a tree of
statements, from which a failing one is reduced.
"""

from __future__ import annotations

import dataclasses
import random

from fuzzing.statements import Statement, lines

SIZE = 64
BUFFERS = ("I", "B", "C")
"""The parameters. No program writes `C`, so that all lanes may read any element of it."""

_LANES = 16
_DEPTH = 4
_COMPARE = ("<", "<=", ">", ">=", "==", "!=")


def script(body: list[Statement]) -> str:
    """The program with these statements."""
    params = ", ".join(f'{name}: T.Buffer(({SIZE},), "int32")' for name in BUFFERS)
    return "\n".join(["@T.prim_func", f"def control({params}):", *lines(body), ""])


@dataclasses.dataclass(frozen=True)
class Scope:
    """What a statement may use: variables below 64, buffers that it may write, and the lane."""

    variables: tuple[str, ...] = ()
    written: tuple[str, ...] = ("I", "B")
    lane: str | None = None
    depth: int = 0

    def inside(self, *variables: str) -> Scope:
        return dataclasses.replace(
            self, variables=(*self.variables, *variables), depth=self.depth + 1
        )


def draw(seed: int) -> list[Statement]:
    """The program of a seed."""
    return _Drawer(seed).program()


class _Drawer:
    """Draws the statements of one program."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0

    def program(self) -> list[Statement]:
        scope = Scope()
        head: list[Statement] = []
        if self.chance.random() < 0.3:
            head.append(Statement(f'V = T.decl_buffer(({SIZE},), "int32", data=I.data)'))
            scope = dataclasses.replace(scope, written=("I", "B", "V"))
        return head + self.several(scope, 2, 4)

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    # ------------------------------------------------------------------------- expressions

    def index(self, scope: Scope) -> str:
        """An index of a buffer that is written: in lanes, that of the lane."""
        if scope.lane is not None:
            return scope.lane
        kind = self.chance.random()
        if kind < 0.5 and scope.variables:
            return self.chance.choice(scope.variables)
        if kind < 0.7:
            return f"{self.chance.choice(scope.written)}[{self.chance.randrange(8)}]"
        return str(self.chance.randrange(8))

    def load(self, scope: Scope) -> str:
        if self.chance.random() < 0.15:
            places = [*scope.variables, str(self.chance.randrange(8))]
            return f"C[{self.chance.choice(places)}]"
        return f"{self.chance.choice(scope.written)}[{self.index(scope)}]"

    def value(self, scope: Scope, depth: int = 0) -> str:
        kind = self.chance.random()
        if kind < 0.45:
            return self.load(scope)
        if kind < 0.6 and scope.variables:
            return self.chance.choice(scope.variables)
        if kind < 0.75 or depth > 1:
            return str(self.chance.randrange(20))
        a, b = self.value(scope, depth + 1), self.load(scope)
        return self.chance.choice(
            (f"({a} + {b})", f"({b} - {a})", f"T.min({b}, {a})", f"T.max({b}, {a})")
        )

    def condition(self, scope: Scope) -> str:
        limit = self.chance.choice((str(self.chance.randrange(24)), self.value(scope)))
        test = f"{self.load(scope)} {self.chance.choice(_COMPARE)} {limit}"
        if scope.variables and self.chance.random() < 0.5:
            variable = self.chance.choice(scope.variables)
            test = f"{variable} {self.chance.choice(_COMPARE)} {self.value(scope)}"
        kind = self.chance.random()
        if kind < 0.15:
            return f"{test} and {self.condition(scope)}"
        if kind < 0.25:
            return f"{test} or {self.condition(scope)}"
        return test

    # -------------------------------------------------------------------------- statements

    def several(self, scope: Scope, low: int = 1, high: int = 3) -> list[Statement]:
        result: list[Statement] = []
        for _ in range(self.chance.randint(low, high)):
            stated = self.statement(scope)
            result += stated
            if len(stated) == 1 and (name := stated[0].line.partition(":")[0]).startswith("x"):
                scope = dataclasses.replace(scope, variables=(*scope.variables, name))
        return result

    def statement(self, scope: Scope) -> list[Statement]:
        kinds = [self.store, self.store, self.named]
        if scope.depth < _DEPTH:
            kinds += [self.branch, self.branch, self.loop]
            if scope.lane is None:
                kinds += [self.loop, self.lanes, self.block, self.atomic]
        return self.chance.choice(kinds)(scope)

    def store(self, scope: Scope) -> list[Statement]:
        target = self.chance.choice(scope.written)
        return [Statement(f"{target}[{self.index(scope)}] = ({self.value(scope)}) % {SIZE}")]

    def named(self, scope: Scope) -> list[Statement]:
        return [Statement(f"{self.name('x')}: T.int32 = ({self.value(scope)}) % {SIZE}")]

    def atomic(self, scope: Scope) -> list[Statement]:
        how = self.chance.choice(("min", "max"))
        element = f"{self.chance.choice(scope.written)}[{self.index(scope)}]"
        limit = self.chance.randrange(12)
        return [Statement(f"T.evaluate(T.atomic_{how}({element}, {limit}))")]

    def branch(self, scope: Scope) -> list[Statement]:
        inner = scope.inside()
        otherwise = self.several(inner) if self.chance.random() < 0.4 else []
        line = f"if {self.condition(scope)}:"
        return [Statement(line, self.several(inner), otherwise, nests=True)]

    def loop(self, scope: Scope) -> list[Statement]:
        """A serial loop, mostly with loaded bounds."""
        variable, most = self.name("k"), self.chance.randint(2, 9)
        end = f"T.min({self.load(scope)}, {most})"
        kind = self.chance.random()
        if scope.lane is not None and kind < 0.7:  # bounds that vary by lane are not vectorized
            domain = self.chance.choice((str(most), f"T.min(C[{most}], {most})"))
        elif kind < 0.2:
            domain = str(most)
        elif kind < 0.4:
            domain = f"T.min({self.load(scope)}, 4), {end}"
        elif kind < 0.5:
            domain = f"{self.chance.choice(scope.written)}[{self.index(scope)}] // 8"
        else:
            domain = end
        body = self.several(scope.inside(variable))
        return [Statement(f"for {variable} in range({domain}):", body, nests=True)]

    def lanes(self, scope: Scope) -> list[Statement]:
        """A vectorized or parallel loop whose iterations access their own elements."""
        variable = self.name("v")
        kind = self.chance.choice(("vectorized", "vectorized", "parallel"))
        memory = self.chance.choice(scope.written[::2] if "V" in scope.written else scope.written)
        written = ("B", "V" if memory == "V" else "I")  # two names of a memory are not vectorized
        inner = dataclasses.replace(
            scope.inside(variable), lane=variable, variables=(variable,), written=written
        )
        body = self.branch(inner) + self.several(inner, 0, 2)
        return [Statement(f"for {variable} in T.{kind}({_LANES}):", body, nests=True)]

    def block(self, scope: Scope) -> list[Statement]:
        """A block with loaded iterators, and perhaps a predicate, a view and a buffer."""
        inner = dataclasses.replace(scope.inside(), variables=())
        own = [self.name("w") for _ in range(self.chance.randint(1, 2))]
        head: list[Statement] = []
        for name in own:
            bound = self.chance.choice((*scope.variables, f"({self.value(scope)}) % {SIZE}"))
            head.append(Statement(f"{name} = T.axis.opaque({SIZE}, {bound})"))
        if self.chance.random() < 0.3:
            head.append(Statement(f"T.where({self.condition(scope)})"))
        inner = dataclasses.replace(inner, variables=tuple(own))
        if self.chance.random() < 0.3:
            head += self.buffer(inner)
        if self.chance.random() < 0.3:
            head += self.view(inner)
        body = head + self.several(inner)
        return [Statement(f'with T.block("{self.name("b")}"):', body, nests=True)]

    def view(self, scope: Scope) -> list[Statement]:
        """A view of eight elements from a loaded one on, whose elements the body changes."""
        name, memory = self.name("R"), self.chance.choice(("I", "B"))
        begin = f"{self.load(scope)} // 2"
        region = f"{memory}[{begin} : {begin} + 8]"
        place = self.chance.randrange(8)
        return [
            Statement(f'{name} = T.match_buffer({region}, (8,), "int32", offset_factor=1)'),
            *self.store(scope),
            Statement(f"{name}[{place}] = {self.chance.randrange(SIZE)}"),
        ]

    def buffer(self, scope: Scope) -> list[Statement]:
        """A buffer of loaded size, filled in a loop of this size, which then changes."""
        name, variable, size = self.name("L"), self.name("k"), f"{self.load(scope)} + 1"
        last = self.name("x")
        fill = Statement(f"{name}[{variable}] = {variable}")
        return [
            Statement(f'{name} = T.alloc_buffer(({size},), "int32")'),
            Statement(f"{last}: T.int32 = {size}"),
            Statement(f"for {variable} in range({size}):", [fill], nests=True),
            *self.store(scope),
            Statement(f"B[{self.index(scope)}] = {name}[{last} - 1] % {SIZE}"),
        ]
