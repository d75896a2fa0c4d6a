"""Random statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from fuzzing.programs.expressions import Expressions
from fuzzing.programs.scope import Buffer, Index, Lane, Scope
from fuzzing.statements import Statement

_DEPTH = 4
_CLAMPED = "T.max(T.min({}, T.float32(64)), T.float32(-64))"
"""Floats stay finite, since the bits of NaN are unspecified."""
_BYTES = {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint8": 1, "int16": 2}


class Callee(msgspec.Struct, frozen=True):
    """A function that others call: `f(X, P, k, n)`.

    Attributes:
        writes: whether it writes `P` too; distinct: whether `X` and `P` must be two memories.
        low, high: the declared range of `k`; most: the largest `n`.
    """

    name: str
    writes: bool
    distinct: bool
    low: int
    high: int
    most: int


class Statements(Expressions):
    """Draws statements; a statement may extend the scope of those that follow it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.callees: list[Callee] = []
        self.left = 0
        self.scalars: tuple[tuple[str, str], ...] = ()

    def several(self, scope: Scope, low: int = 1, high: int = 3) -> list[Statement]:
        result: list[Statement] = []
        for _ in range(self.chance.randint(low, high)):
            if self.left <= 0:
                break
            self.left -= 1
            stated, scope = self.statement(scope)
            result += stated
        return result

    def statement(self, scope: Scope) -> tuple[list[Statement], Scope]:
        kinds: list[Callable[[Scope], list[Statement]]] = [self.store, self.store, self.named]
        if self.happens(0.2) and self.scope_of_view(scope):
            return self.view(scope)
        if scope.depth < _DEPTH:
            kinds += [self.branch, self.branch, self.loop, self.loop]
            if scope.lane is None:
                kinds += [self.lanes, self.lanes, self.block, self.carried, self.turns]
                kinds += [self.reduction, self.atomic]
        if scope.callees and (scope.lane is None or scope.lane.kind == "T.parallel"):
            kinds += [self.call, self.call]
        if scope.jumps and self.happens(0.4):
            kinds.append(self.jump)
        if scope.lane is None:
            kinds.append(self.check)
        return self.chance.choice(kinds)(scope), scope

    # ------------------------------------------------------------------------------ simple

    def stored(self, scope: Scope, buffer: Buffer, value: str) -> Statement:
        """A store that keeps floats finite, and most small numbers small."""
        if buffer.dtype == "float32":
            value = _CLAMPED.format(value)
        elif buffer.small:
            value = f"({value}) % {self.chance.choice((4, 4, 8, 13))}"
        return Statement(f"{self.element(scope, buffer)} = {value}")

    def store(self, scope: Scope) -> list[Statement]:
        buffers = self.there(scope, scope.writable())
        if not buffers:
            return [Statement(f"T.evaluate({self.quietly(self.leaf, scope, 'int32')})")]
        buffer = self.chance.choice(buffers)
        return [self.stored(scope, buffer, self.value(scope, buffer.dtype))]

    def named(self, scope: Scope) -> list[Statement]:
        """A named value, what may change its memory, and a use of the name."""
        loaded = scope.readable("int32")
        if not loaded:
            return self.store(scope)
        name = self.name("x")
        kind = self.chance.random()
        if kind < 0.3 and scope.indices:
            index = self.chance.choice(scope.indices)
            head = Statement(f'{name}: T.int32 = T.Cast("int32", T.min({index.name}, 5))')
            inner = scope.new(indices=(*scope.indices, Index(name, 6)))
        elif kind < 0.6:
            head = Statement(f"{name}: T.int32 = ({self.value(scope, 'int32', 1)}) % 6")
            inner = scope.new(indices=(*scope.indices, Index(name, 6)))
        else:
            head = Statement(f"{name}: T.int32 = {self.value(scope, 'int32')}")
            inner = scope.new(values=(*scope.values, (name, "int32")))
        buffers = self.there(scope, scope.writable())
        if not buffers:
            return self.store(scope)
        buffer = self.chance.choice(buffers)
        use = self.operation(
            buffer.dtype, self.value(inner, buffer.dtype, 2), f'T.Cast("{buffer.dtype}", {name})'
        )
        return [head, *self.several(inner, 1, 2), self.stored(inner, buffer, use)]

    def atomic(self, scope: Scope) -> list[Statement]:
        found = self.update(scope, "int32")
        return [Statement(f"T.evaluate({found})")] if found else self.store(scope)

    def check(self, scope: Scope) -> list[Statement]:
        """An assertion that mostly holds, or an early end of the program."""
        test = self.condition(scope)
        if scope.returns and self.happens(0.3):
            return [Statement(f"if {test} and {self.quietly(self.compared, scope, 1)}:",
                              [Statement("T.ret()")], nests=True)]  # fmt: skip
        likely = f"{self.bound(scope)} != {self.chance.randint(1, 9)}"
        return [Statement(f'assert {likely} or {self.quietly(self.compared, scope, 1)}, "no"')]

    def jump(self, scope: Scope) -> list[Statement]:
        leave = self.chance.choice(("break", "continue"))
        return [Statement(f"if {self.condition(scope)}:", [Statement(leave)], nests=True)]

    # --------------------------------------------------------------------------- structure

    def branch(self, scope: Scope) -> list[Statement]:
        inner = scope.inside()
        otherwise = self.several(inner) if self.happens(0.4) else []
        line = f"if {self.condition(scope)}:"
        return [Statement(line, self.several(inner), otherwise, nests=True)]

    def loop(self, scope: Scope) -> list[Statement]:
        """A serial loop with constant or loaded bounds."""
        name, most = self.name("i"), self.chance.choice((2, 3, 4, 6, 8))
        index = Index(name, most)
        domain = f"range({most})"
        kind = self.chance.random()
        in_lanes = scope.lane is not None and scope.lane.kind == "T.vectorized"
        if kind < 0.15 and scope.sizes:
            domain, index = "range(n)", Index(name, 8, "n")
        elif kind < 0.25:
            domain = f"T.unroll({most})"
        elif kind < 0.35:
            domain = f"range(1, {most}, 2)"
        elif kind < 0.65 and not in_lanes:
            end = self.bound(scope, self.chance.choice(("int32", "int32", "int64")))
            domain = f"range(T.min({end}, {most}))"
        elif kind < 0.75 and not in_lanes:
            begin = f"({self.bound(scope)}) & 3"
            step = self.chance.choice(("", "", ", 2"))
            domain = f"range({begin}, T.min({self.bound(scope)}, {most}){step})"
        inner = scope.inside(index)
        inner = inner.new(jumps=not domain.startswith("T.") and not in_lanes)
        body = self.several(inner)
        return [Statement(f"for {name} in {domain}:", body, nests=True)]

    def bound(self, scope: Scope, dtype: str = "int32") -> str:
        """A value that decides what runs."""
        return self.unchecked(self.value, scope, dtype, 1)

    def turns(self, scope: Scope) -> list[Statement]:
        """A loop with a condition that may have effects, which ends by a counter."""
        buffers = [b for b in scope.writable("int32") if b.plain and not b.small and b.count]
        if not buffers:
            return self.loop(scope)
        buffer = self.chance.choice(buffers)
        place = ", ".join(str(self.chance.randrange(int(n))) for n in buffer.shape)
        counter = f"{buffer.name}[{place}]"
        others = [b for b in scope.buffers if not b.memory & buffer.memory]
        inner = scope.inside().new(buffers=tuple(others), jumps=True, callees=False)
        begin = Statement(f"{counter} = {self.chance.randint(0, 5)}")
        more = f" and {self.quietly(self.compared, inner, 1)}" if self.happens(0.3) else ""
        if self.happens(0.5):
            head = Statement(f"while T.atomic_add({counter}, -1) > 0{more}:", nests=True)
            head.body = self.several(inner)
        else:
            less = Statement(f"{counter} = {counter} - 1")
            head = Statement(f"while {counter} > 0{more}:", [less, *self.several(inner)])
            head.nests = True
        return [begin, head]

    # ------------------------------------------------------------------------------- lanes

    def lanes(self, scope: Scope) -> list[Statement]:
        """A concurrent loop whose iterations write elements of their own."""
        name = self.name("v")
        kind = self.chance.choice(("T.vectorized", "T.vectorized", "T.parallel"))
        extent = self.chance.choice((4, 6, 8))
        pairs = [
            (b, p)
            for b in self.there(scope, scope.writable())
            if b.plain and (p := self.own(b, name, extent))
        ]
        if not pairs:
            return self.loop(scope)
        self.chance.shuffle(pairs)
        inner = scope.inside(Index(name, extent))
        inner = self.lane(inner, name, kind, pairs[: self.chance.randint(1, 2)])
        end = str(extent)
        if kind == "T.parallel" and self.happens(0.3):
            end = f"T.min({self.bound(scope)}, {extent})"
        body = self.several(inner)
        return [Statement(f"for {name} in {kind}({end}):", body, nests=True)]

    def own(self, buffer: Buffer, name: str, extent: int) -> tuple[str, ...]:
        """Indices of the elements that an iteration has for itself, () if there are none."""
        sizes = [n if isinstance(n, int) else 0 for n in buffer.shape]
        fitting = [axis for axis, size in enumerate(sizes) if size >= extent]
        if not fitting or (len(sizes) == 2 and 0 in sizes):
            return ()
        axis = self.chance.choice(fitting)
        result = ["*"] * len(sizes)
        rest = sizes[axis] - extent
        forms = [name, f"{name} + {self.chance.randint(0, rest)}", f"{extent - 1} - {name}"]
        if sizes[axis] >= 2 * extent:
            forms.append(f"{name} * 2 + {self.chance.randint(0, 1)}")
        result[axis] = self.chance.choice(forms)
        return tuple(result)

    def lane(
        self, scope: Scope, name: str, kind: str, pairs: Sequence[tuple[Buffer, tuple[str, ...]]]
    ) -> Scope:
        """The scope inside a concurrent loop that writes these buffers at these places."""
        places: dict[str, tuple[str, ...]] = {}
        memory = frozenset[str]()
        for buffer, place in pairs:
            if not buffer.memory & memory:
                places[buffer.name] = place
                memory |= buffer.memory
        lane = Lane(name, kind, places, memory)
        return scope.new(lane=lane, jumps=False, returns=False)

    # ------------------------------------------------------------------------------ blocks

    def block(self, scope: Scope) -> list[Statement]:
        """A block with iterators, and perhaps a predicate and a buffer."""
        head: list[Statement] = []
        own: list[Index] = []
        for index in scope.indices[-2:]:
            end, bound = index.end, index.name
            if self.happens(0.3):
                bound, end = f"T.min({self.value(scope, 'int32', 1)} & 7, 5)", 6
            name = self.name("w")
            own.append(Index(name, end))
            head.append(Statement(f"{name} = T.axis.opaque({end}, {bound})"))
        if self.happens(0.4):
            head.append(Statement(f"T.where({self.condition(scope)})"))
        inner = scope.inside().new(indices=tuple(own), values=(), jumps=False)
        if not own:
            head.append(Statement("w = T.axis.opaque(1, 0)"))
        if self.happens(0.4):
            made, inner = self.buffer(inner)
            head += made
        body = head + self.several(inner)
        return [Statement(f'with T.block("{self.name("b")}"):', body, nests=True)]

    def buffer(self, scope: Scope) -> tuple[list[Statement], Scope]:
        """A buffer that is filled at once."""
        name, dtype = self.name("t"), self.chance.choice(("int32", "int32", "float32"))
        size = self.chance.choice((4, 8, 16))
        made = Buffer(name, dtype, (size,), frozenset({name}))
        variable = self.name("i")
        inner = scope.inside(Index(variable, size))
        value = self.value(inner, dtype)
        value = _CLAMPED.format(value) if dtype == "float32" else value
        return [
            Statement(f'{name} = T.alloc_buffer(({size},), "{dtype}")'),
            Statement(
                f"for {variable} in range({size}):",
                [Statement(f"{name}[{variable}] = {value}")],
                nests=True,
            ),
        ], scope.new(buffers=(*scope.buffers, made))

    def carried(self, scope: Scope) -> list[Statement]:
        """A loop with a buffer that the first iteration, or each of them, fills."""
        name, variable, place = self.name("t"), self.name("i"), self.name("j")
        size, extent = self.chance.choice((8, 16)), self.chance.choice((3, 4, 6))
        made = Buffer(name, "int32", (size,), frozenset({name}))
        most = self.chance.choice((4, size))
        index = Index(variable, extent)
        outer = scope.inside(index).new(values=(), indices=(index,))
        fill = Statement(
            f"{name}[{place}] = {self.value(outer.inside(Index(place, size)), 'int32')}"
        )
        first = [Statement(f"for {place} in range({size}):", [fill], nests=True)]
        if self.happens(0.7):
            limit = self.chance.choice(("1", "1", "2", f"T.max({self.leaf(outer, 'int32')}, 1)"))
            first = [Statement(f"if {variable} < {limit}:", first, nests=True)]
        again = self.name("j")
        inner = outer.new(buffers=(*scope.buffers, made), jumps=True)
        part = inner.inside(index, Index(again, most)).new(jumps=False)
        write = Statement(f"{self.element(part, made)} = {self.value(part, 'int32', 1)}")
        more = [Statement(f"for {again} in range({most}):", [write], nests=True)]
        body = [*first, *self.several(inner, 1, 2), *(more if self.happens(0.5) else [])]
        target = self.chance.choice(self.there(outer, outer.writable("int32")) or [made])
        place_of = self.element(outer if target is not made else inner, target)
        body.append(Statement(f"{place_of} = {self.element(inner, made)}"))
        loop = Statement(f"for {variable} in range({extent}):", body, nests=True)
        head = [Statement(f'{name} = T.alloc_buffer(({size},), "int32")'), loop]
        if scope.depth == 0 and self.happens(0.5):
            return head
        inside = [Statement("w = T.axis.opaque(1, 0)"), *head]
        return [Statement(f'with T.block("{self.name("b")}"):', inside, nests=True)]

    def reduction(self, scope: Scope) -> list[Statement]:
        """A block that sums into elements of a buffer."""
        buffers = [
            b
            for b in self.there(scope, scope.writable())
            if b.plain and len(b.shape) == 1 and b.count and not b.small
        ]
        if not buffers:
            return self.loop(scope)
        buffer = self.chance.choice(buffers)
        i, k, vi, vk = (self.name(x) for x in ("i", "i", "w", "w"))
        rows, terms = min(buffer.count, self.chance.choice((1, 4, 6))), self.chance.choice((3, 5))
        others = tuple(b for b in scope.buffers if not b.memory & buffer.memory)
        inner = scope.new(
            buffers=others, indices=(Index(vi, rows), Index(vk, terms)), values=(), jumps=False
        )
        element, zero = f"{buffer.name}[{vi}]", self.number(buffer.dtype)
        where = f"T.where({i} {self.chance.choice(('<', '!='))} {self.chance.randrange(rows + 1)})"
        kind = self.chance.choice(("range", "range", "T.parallel"))
        alone = kind == "range"  # concurrent updates would give results in any order
        draw = self.value if alone else partial(self.quietly, self.value)
        value = draw(inner, buffer.dtype, 1)
        total = self.chance.choice((f"{element} + {value}", f"T.max({element}, {value})"))
        if buffer.dtype == "float32":
            total = _CLAMPED.format(total)
        body = [
            Statement(f"{vi} = T.axis.spatial({rows}, {i})"),
            Statement(f"{vk} = T.axis.reduce({terms}, {k})"),
            *([Statement(where)] if self.happens(0.3) else []),
            Statement("with T.init():", [Statement(f"{element} = {zero}")], nests=True),
            Statement(f"{element} = {total}"),
        ]
        block = Statement(f'with T.block("{self.name("b")}"):', body, nests=True)
        inside = Statement(f"for {k} in range({terms}):", [block], nests=True)
        return [Statement(f"for {i} in {kind}({rows}):", [inside], nests=True)]

    # ------------------------------------------------------------------------------- views

    def scope_of_view(self, scope: Scope) -> list[Buffer]:
        """Buffers that a view may be declared on."""
        return [b for b in scope.readable() if b.plain and b.count >= 8 and scope.lane is None]

    def view(self, scope: Scope) -> tuple[list[Statement], Scope]:
        """Another name of the memory of a buffer."""
        base = self.chance.choice(self.scope_of_view(scope))
        name, dtype = self.name("V"), base.dtype
        if self.happens(0.35) and dtype != "float32":
            fitting = [t for t in ("int16", "uint8", "int32") if _BYTES[t] <= _BYTES[dtype]]
            dtype = self.chance.choice(fitting)
        room = base.count * _BYTES[base.dtype] // _BYTES[dtype]
        offset = self.chance.choice((0, 0, 1, 2, 3))
        text = str(offset)
        loads = scope.readable("int32")
        if loads and self.happens(0.2):
            text, offset = f"({self.quietly(self.leaf, scope, 'int32')}) & 3", 3
        room -= offset
        shape: tuple[int, ...] = (
            self.chance.choice([n for n in (2, 4, 6, 8) if n <= room] or [1]),
        )
        strides = ""
        kind = self.chance.random()
        if kind < 0.3:
            step = max(1, (room - 1) // max(1, shape[0] - 1))
            strides = f"strides=({self.chance.randint(1, step)},)"
        elif kind < 0.6:
            shape = (2, 3) if room >= 12 else (2, 2)
            wide = ((3, 1), (4, 1), (1, 2), (1, 3))
            outer, inner = self.chance.choice(wide if room >= 12 else ((2, 1),))
            strides = f"strides=({outer}, {inner})"
        size = "".join(f"{n}, " for n in shape).rstrip()
        parts = [f'({size}), "{dtype}", data={base.name}.data', f"elem_offset={text}", strides]
        if text == "0" and self.happens(0.7):
            parts.pop(1)
        line = f"{name} = T.decl_buffer({', '.join(p for p in parts if p)})"
        made = Buffer(name, dtype, shape, base.memory, base.written, not strides)
        return [Statement(line)], scope.new(buffers=(*scope.buffers, made))

    # ------------------------------------------------------------------------------- calls

    def call(self, scope: Scope) -> list[Statement]:
        """A call of another function, mostly with memory and numbers that fit."""
        callee = self.chance.choice(self.callees)
        lane = scope.lane
        rows = [b for b in scope.writable("int32") if b.count >= 4 and b.plain]
        if lane is not None:
            rows = [b for b in rows if lane.places.get(b.name, ("", ""))[-1:] == ("*",)]
        if not rows:
            return self.store(scope)
        first = self.chance.choice(rows)
        pointer, room = f"{first.name}.data", first.count
        if lane is not None:
            pointer = f"T.address_of({first.name}[{lane.places[first.name][0]}, 0])"
            room = int(first.shape[1])
        elif len(first.shape) == 1 and self.happens(0.4):
            start = self.chance.randint(0, first.count - 2)
            pointer, room = f"T.address_of({first.name}[{start}])", room - start
        seconds = scope.writable("int32") if callee.writes else scope.readable("int32")
        seconds = [b for b in seconds if b.plain and b.count >= 4]
        if lane is not None:
            seconds = [b for b in seconds if b.name not in lane.places]
        if callee.distinct and not self.happens(0.02):
            seconds = [b for b in seconds if not b.memory & first.memory]
        if not seconds:
            return self.store(scope)
        most = min(room, callee.most)
        size = str(self.chance.randint(0, most))
        if self.happens(0.3):
            most = most if room < callee.most or self.happens(0.8) else min(room, callee.most + 1)
            size = f'T.Cast("int64", T.min({self.value(scope, "int32", 1)}, {most}))'
            size = size if self.happens(0.15) else f"T.max({size}, 0)"
        number = str(self.chance.choice((callee.low, callee.high, 1)))
        if self.happens(0.5):
            wide = f"({self.value(scope, 'int32', 1)}) % {callee.high - callee.low + 1}"
            number = f"{wide} + {callee.low if self.happens(0.9) else callee.low + 1}"
        second = self.chance.choice(seconds)
        return [Statement(f"Module.{callee.name}({pointer}, {second.name}.data, {number}, {size})")]
