"""Random bodies of blocks, as text: indices, loops and conditions that mix everything an access may
depend on. The names A, C, I, F, Z, m and p are those of `test_signatures_cover`."""

from __future__ import annotations

import random


def random_blocks(seed: int) -> str:
    """The statements of a program with a block or two."""
    draw = _Draw(seed)
    for _ in range(draw.chance.choice((1, 2))):
        draw.block(["m", "p"] if draw.happens(0.3) else ["m"], [], 0, 2)
    return "\n".join(draw.lines)


class _Draw:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.lines: list[str] = []
        self.count = 0

    def happens(self, probability: float) -> bool:
        return self.chance.random() < probability

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def out(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    # ------------------------------------------------------------------ expressions
    def atom(self, names: list[str]) -> str:
        if names and self.happens(0.75):
            return self.chance.choice(names)
        return str(self.chance.choice((0, 1, 2, 3, 5, 7, -1, -4)))

    def index(self, names: list[str], depth: int = 2) -> str:
        if depth == 0 or self.happens(0.25):
            return self.atom(names)
        a, b = self.index(names, depth - 1), self.index(names, depth - 1)
        c, d = self.chance.choice((2, 3, 4, 5)), self.chance.choice((2, 3, 6))
        condition = self.condition(names, depth - 1)
        forms = [
            f"({a} + {b})",
            f"({a} - {b})",
            f"({a} * {self.chance.choice((2, 3, -1, -2))})",
            f"({a} // {c})",
            f"({a} % {c})",
            f"T.min({a}, {b})",
            f"T.max({a}, {b})",
            f"T.Select({condition}, {a}, {b})",
            f"T.if_then_else({condition}, {a}, {b})",
            f"I[{a} % 8]",
            f"T.Cast('int32', T.Cast('int64', {a}))",
            f"T.truncdiv({a}, {c})",
            f"T.truncmod({a}, {c})",
            f"T.bitwise_and({a}, 3)",
            f"(({'p' if self.happens(0.5) else a} + {b}) // 536870912)",
            f"(({a} * {c} + {b}) {self.chance.choice(('//', '%'))} {d})",
        ]
        return self.chance.choice(forms)

    def condition(self, names: list[str], depth: int = 1) -> str:
        compare = self.chance.choice(("<", "<=", ">", ">=", "==", "!="))
        return f"{self.index(names, depth)} {compare} {self.index(names, depth)}"

    def place(self, names: list[str], views: list[tuple[str, int]], *buffers: str) -> str:
        if views and self.happens(0.35):
            view, rank = self.chance.choice(views)
            return f"{view}[{', '.join(self.index(names, 1) for _ in range(rank)) or '()'}]"
        buffer = self.chance.choice(buffers)
        if buffer == "Z":
            return "Z[()]"
        if buffer == "C":
            return f"C[{self.index(names)} + 15, {self.index(names)} + 15]"
        return f"{buffer}[{self.index(names)} + 40]"

    # ------------------------------------------------------------------ statements
    def statements(
        self, names: list[str], views: list[tuple[str, int]], at: int, depth: int
    ) -> None:
        for _ in range(self.chance.choice((1, 1, 2))):
            self.statement(names, views, at, depth)

    def statement(
        self, names: list[str], views: list[tuple[str, int]], at: int, depth: int
    ) -> None:
        kind = self.chance.randrange(10)
        if depth == 0 or self.happens(0.3):
            self.store(names, views, at)
        elif kind <= 3:
            loop = self.name("j")
            start = self.index(names, 1) if self.happens(0.4) else "0"
            extent = self.chance.choice(
                ("3", f"T.min({self.index(names)}, 4)", self.index(names, 1))
            )
            self.out(at, f"for {loop} in range({start}, {start} + {extent}):")
            self.statements([*names, loop, loop], views, at + 1, depth - 1)
        elif kind == 4:
            name = self.name("x")
            self.out(at, f"{name}: T.int32 = {self.index(names)}")
            self.statements([*names, name, name], views, at, depth - 1)
        elif kind == 5:
            self.out(at, f"if {self.condition(names)}:")
            self.statements(names, views, at + 1, depth - 1)
        else:
            self.block(names, views, at, depth - 1)

    def store(self, names: list[str], views: list[tuple[str, int]], at: int) -> None:
        if self.happens(0.12):
            lanes = [
                f"T.Ramp({self.index(names, 1)} + 40, {self.index(names, 1)}, 4)" for _ in range(2)
            ]
            self.out(at, f"F[{lanes[0]}] = A[{lanes[1]}]")
            return
        if self.happens(0.07):
            self.out(at, f"I[{self.index(names, 1)} % 8] = {self.index(names, 1)} % 8")
            return
        value = self.place(names, views, "A", "A", "C", "F", "Z")
        if self.happens(0.05):
            place = self.place(names, [], "F", "C")
            self.out(at, f"T.evaluate(T.atomic_add({place}, {value}, dtype='int32'))")
            return
        place = self.place(names, views, "F", "C", "Z")
        if self.happens(0.3):
            other = self.place(names, views, "A", "F")
            value = f"T.if_then_else({self.condition(names)}, {value}, {other})"
        self.out(at, f"{place} = {f'{place} + ' if self.happens(0.3) else ''}{value}")

    def block(self, names: list[str], views: list[tuple[str, int]], at: int, depth: int) -> None:
        loops: dict[str, int] = {}
        for _ in range(self.chance.choice((1, 2))):
            loops[self.name("i")] = self.chance.choice((2, 3, 4))
        for loop, extent in loops.items():
            self.out(at, f"for {loop} in range({extent}):")
            at += 1
        self.out(at, f"with T.block('{self.name('B')}'):")
        at += 1
        inside = [n for n in names if n[0] in "vmp"]
        kinds = [self.chance.choice(("spatial", "spatial", "reduce", "opaque")) for _ in loops]
        for (loop, extent), kind in zip(loops.items(), kinds, strict=True):
            domain, value = self.chance.choice(
                (
                    (f"{extent}", loop),
                    (f"(1, {extent + 1})", f"{loop} + 1"),
                    ("(-3, 30)", f"{self.atom(names)} * 2 + {loop}"),
                    (f"(0, {extent + 1})", f"{loop} + 1"),
                )[: 2 if kind == "reduce" else 4]
            )
            iterator = self.name("v")
            self.out(at, f"{iterator} = T.axis.{kind}({domain}, {value})")
            inside += [iterator, iterator]
        if self.happens(0.35) and "reduce" not in kinds:
            self.out(at, f"T.where({self.condition([*names, *loops])})")
        if self.happens(0.25):
            views = [*views, self.view(inside, at)]
        if self.happens(0.6 if "reduce" in kinds else 0.1):
            self.out(at, "with T.init():")
            self.statements(inside, views, at + 1, min(depth, 1))
        self.statements(inside, views, at, depth)

    def view(self, names: list[str], at: int) -> tuple[str, int]:
        name, rank = self.name("D"), self.chance.choice((0, 1, 2))
        row, column = self.index(names, 1), self.index(names, 1)
        rows = f"{row} + 15 : {row} + 19" if rank == 2 else f"{row} + 15"
        columns = f"{column} + 15 : {column} + 19" if rank else f"{column} + 15"
        shape = "(" + "4, " * rank + ")"
        self.out(at, f"{name} = T.match_buffer(C[{rows}, {columns}], {shape}, 'int32')")
        return name, rank
