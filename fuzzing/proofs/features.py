"""Small programs with what schedules seldom have: bound values, atomic updates, views, assertions,
vectors, domains that may be empty, conversions, operands that may fail.

A program is drawn as text: a few nests over parameters `A`, `B` (floats), `I`, `J` (integers) and
`F` (a small type), each of a symbolic size `n` or of 6 elements.
"""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable

from blockwright import ir
from blockwright.script.ir import from_source

SMALL = (
    "int8", "uint8", "int4", "int2", "float16", "bfloat16", "float4_e2m1fn", "float4_e2m1fn",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
)  # fmt: skip


class _Draw:
    """One program.

    Attributes:
        size: the number of elements of each parameter, as text.
        at: the position of the current instance.
        names: the bound values in scope: floats and integers.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.symbolic = chance.random() < 0.5
        self.size = "n" if self.symbolic else "6"
        self.small = chance.choice(SMALL)
        self.at = "vi"
        self.names: tuple[list[str], list[str]] = [], []
        self.count = 0

    def pick(self, *options: str) -> str:
        return self.chance.choice(options)

    def position(self) -> str:
        return self.pick(self.at, self.at, self.at, "0", f"{self.size} - 1 - {self.at}")

    # ------------------------------------------------------------------ values
    def number(self, depth: int = 2) -> str:
        """A float32."""
        c = self.chance.randrange(9 if depth else 4)
        if c == 0 and self.names[0]:
            return self.chance.choice(self.names[0])
        if c <= 2:
            return f"{self.pick('A', 'A', 'A', 'A', 'B')}[{self.position()}]"
        if c == 3:
            return f"T.float32({self.pick('0', '1', '-0.0', '0.1', '2.5')})"
        a, b = self.number(depth - 1), self.number(depth - 1)
        if c == 4:
            return f"({a} {self.pick('+', '-', '*')} {b})"
        if c == 5:
            return f"T.{self.pick('min', 'max')}({a}, {b})"
        if c == 6:
            choice = self.pick("T.Select", "T.if_then_else")
            return f"{choice}({a} > {b}, {a}, {b})"
        if c == 7:
            text = f"F[{self.position()}]"
            if self.chance.random() < 0.5:
                text = f'T.Cast("{self.chance.choice(SMALL)}", {text})'
            cast = f'T.Cast("float32", {text})'
            return self.pick(cast, f"T.float32(1) / {cast}")
        choice = self.pick("T.Select", "T.if_then_else")
        i = f"I[{self.position()}]"
        return f"{choice}({i} >= 0 and {i} < {self.size}, A[{i}], {a})"

    def integer(self, depth: int = 2) -> str:
        """An int32 value."""
        c = self.chance.randrange(8 if depth else 4)
        if c == 0 and self.names[1]:
            return self.chance.choice(self.names[1])
        if c <= 2:
            return f"{self.pick('I', 'I', 'I', 'I', 'J')}[{self.position()}]"
        if c == 3:
            return f"T.int32({self.pick('0', '1', '3', '2147483647')})"
        a, b = self.integer(depth - 1), self.integer(depth - 1)
        if c in (4, 5):
            return f"({a} {self.pick('+', '-', '*')} {b})"
        if c == 6:
            kind = self.pick("//", "%")
            choice = self.pick("T.Select", "T.if_then_else")
            return f"{choice}({b} != 0, {a} {kind} {b}, 0)"
        return f'T.Cast("int32", T.Cast("{self.pick("int8", "uint8", "float32", "bool")}", {a}))'

    # ------------------------------------------------------------------ statements
    def statements(self, count: int, depth: int = 1) -> str:
        """Several statements of a block; values bound by them end with it."""
        known = [list(names) for names in self.names]
        made = [self._statement(depth) for _ in range(count)]
        self.names = known[0], known[1]
        return "\n".join([*made, self._store()])

    def _statement(self, depth: int) -> str:
        kinds: list[Callable[[], str]] = [self._store, self._bound, self._bound, self._atomic]
        if depth:
            kinds += [self._condition, self._view]
        return self.chance.choice(kinds)()

    def _store(self) -> str:
        if self.chance.random() < 0.5:
            return f"{self.pick('A', 'B', 'B')}[{self.at}] = {self.number()}"
        return f"{self.pick('I', 'J', 'J')}[{self.at}] = {self.integer()}"

    def _bound(self) -> str:
        self.count += 1
        name, whole = f"v{self.count}", self.chance.random() < 0.4
        value = self.integer(1) if whole else self.number(1)
        self.names[whole].append(name)
        return f"{name}: T.{'int32' if whole else 'float32'} = {value}"

    def _atomic(self) -> str:
        target = f"{self.pick('A', 'B')}[{self.position()}]"
        kind = self.pick("add", "add", "max", "min")
        return f"T.evaluate(T.atomic_{kind}({target}, {self.number(1)}))"

    def _condition(self) -> str:
        test = self.pick(f"{self.number(0)} > {self.number(0)}", f"{self.at} > 0", f"{self.at} < 3")
        return f"if {test}:\n" + textwrap.indent(self.statements(1, 0), "    ")

    def _view(self) -> str:
        self.count += 1
        view, source = f"D{self.count}", self.pick("A", "B")
        return (
            f'with T.block("view{self.count}"):\n'
            f"    {view} = T.match_buffer({source}[0:{self.size}], ({self.size},))\n"
            f"    {view}[{self.position()}] = {self.number(1)}"
        )

    # ------------------------------------------------------------------ nests
    def nest(self) -> str:
        makers = [
            self._block, self._block, self._block, self._block, self._reduction, self._vector,
            self._sum, self._changed, self._converted,
        ]  # fmt: skip
        if self.symbolic:
            makers.append(self._assertion)
        return self.chance.choice(makers)()

    def _block(self) -> str:
        self.count += 1
        self.at = f"w{self.count}"
        kind = self.pick("range", "range", "range", "T.parallel", "T.vectorized")
        if kind == "T.vectorized" and self.symbolic:
            kind = "T.parallel"
        return self._over(self.statements(self.chance.randrange(3)), kind)

    def _reduction(self) -> str:
        """A sum over a domain that may be empty."""
        self.count += 1
        gap = self.chance.randrange(3)
        start = self.pick("0", "1", "-0.0")
        return textwrap.dedent(f"""
            for i, k in T.grid({self.size}, {self.size} - {gap}):
                with T.block("r{self.count}"):
                    vi = T.axis.spatial({self.size}, i)
                    vk = T.axis.reduce({self.size} - {gap}, k)
                    with T.init():
                        B[vi] = T.float32({start})
                    B[vi] = B[vi] + A[vk]
        """).strip()

    def _sum(self) -> str:
        """All elements are combined in one, by some kind of loop and iterator."""
        self.count += 1
        kind = self.pick("range", "T.parallel", "T.vectorized")
        if self.symbolic and kind == "T.vectorized":
            kind = "T.parallel"
        update = self.pick(
            "B[0] = B[0] + A[w]", "T.evaluate(T.atomic_add(B[0], A[w]))", "B[0] = T.max(B[0], A[w])"
        )
        return textwrap.dedent(f"""
            for k in {kind}({self.size}):
                with T.block("s{self.count}"):
                    w = T.axis.{self.pick("spatial", "reduce")}({self.size}, k)
                    {update}
        """).strip()

    def _changed(self) -> str:
        """A value is read, its element changes, and the value is used."""
        self.count += 1
        at = self.at = f"w{self.count}"
        x, y = self.chance.sample(["A", "B"], 2)
        change = self.pick(
            f"T.evaluate(T.atomic_add({x}[{at}], T.float32(1)))",
            f"{x}[{at}] = T.float32(7)",
            f'with T.block("view{self.count}"):\n'
            f"    D{self.count} = T.match_buffer({x}[0:{self.size}], ({self.size},))\n"
            f"    D{self.count}[{at}] = T.float32(7)",
        )
        value = self.pick("v", "v + T.float32(1)", f"v * {x}[{at}]")
        body = f"v: T.float32 = {x}[{at}]\n{change}\n{y}[{at}] = {value}"
        return self._over(body)

    def _converted(self) -> str:
        self.count += 1
        at = self.at = f"w{self.count}"
        inner = self.pick(f"F[{at}]", f'T.Cast("{self.chance.choice(SMALL)}", F[{at}])')
        return self._over(f'B[{at}] = T.float32(1) / T.Cast("float32", {inner})')

    def _over(self, body: str, kind: str = "range") -> str:
        """A block that runs for every position."""
        return (
            f"for i in {kind}({self.size}):\n"
            f'    with T.block("b{self.count}"):\n'
            f"        {self.at} = T.axis.spatial({self.size}, i)\n" + textwrap.indent(body, " " * 8)
        )

    def _vector(self) -> str:
        if self.symbolic:
            return self._block()
        self.count += 1
        at = self.pick("T.ramp(0, 1, 4)", "T.ramp(2, 1, 4)", "T.ramp(3, -1, 4)")
        to = self.pick("T.ramp(0, 1, 4)", "T.ramp(1, 1, 4)", "T.broadcast(0, 4)")
        old = self.pick(f"B[{to}] + ", "")
        return f'with T.block("x{self.count}"):\n    B[{to}] = {old}A[{at}]'

    def _assertion(self) -> str:
        test = f'assert n {self.pick("<", ">", "!=")} {self.pick("1", "2", "4", "7")}, "no"'
        if self.chance.random() < 0.5:
            return test
        return f"if n {self.pick('>', '<')} 4:\n    {test}"


def feature_program(seed: int) -> ir.PrimFunc:
    """A random program; equal for equal seeds."""
    draw = _Draw(random.Random(seed))
    nests = "\n".join(draw.nest() for _ in range(draw.chance.randint(1, 3)))
    size, lines = draw.size, ["n = T.int64()"] if draw.symbolic else []
    heads: list[str] = []
    kinds = {"A": "float32", "B": "float32", "I": "int32", "J": "int32", "F": draw.small}
    for name, dtype in kinds.items():
        heads.append(f"{name}_handle: T.handle")
        lines.append(f'{name} = T.match_buffer({name}_handle, ({size},), "{dtype}")')
    body = textwrap.indent("\n".join([*lines, nests]), "    ")
    result = from_source(f"@T.prim_func\ndef main({', '.join(heads)}):\n{body}\n")
    assert isinstance(result, ir.PrimFunc)
    return result
