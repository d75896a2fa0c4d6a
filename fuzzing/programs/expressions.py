"""Random expressions: indices that lie in their buffers, and values of any type."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fuzzing.programs.scope import Buffer, Scope

INTEGERS = ("int32", "int64", "uint8", "int16")
_COMPARE = ("<", "<=", ">", ">=", "==", "!=")
_EFFECTS = ("add", "min", "max", "and", "or")
_DEPTH = 2
_NESTED = 2
"""How many indices may be loaded by one another."""
_UNCERTAIN = 0.06
"""Fraction of accesses to buffers of symbolic size, of which no index is known to be there."""


class Expressions:
    """Draws expressions.

    Attributes:
        effects: whether expressions may have effects where they are drawn.
        checks: whether they may have checks, which compiled code drops with what is not needed.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = 0
        self.effects = True
        self.checks = True
        self.nested = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def happens(self, share: float) -> bool:
        return self.chance.random() < share

    def quietly(self, draw: Callable[..., str], *args: object) -> str:
        """An expression without effects and checks, where it need not be evaluated."""
        before = self.effects, self.checks
        self.effects = self.checks = False
        result = draw(*args)
        self.effects, self.checks = before
        return result

    def unchecked(self, draw: Callable[..., str], *args: object) -> str:
        """An expression without checks, which other operands may make superfluous."""
        before, self.checks = self.checks, False
        result = draw(*args)
        self.checks = before
        return result

    # ----------------------------------------------------------------------------- indices

    def index(self, scope: Scope, end: int | str) -> str:
        """An index from 0 to `end` - 1."""
        if isinstance(end, str):
            known = [i.name for i in scope.indices if i.symbol == end]
            known += [f"{end} - 1 - {name}" for name in known]
            if known and (not self.checks or self.happens(0.9)):
                return self.chance.choice(known)
            return f"T.checked_index({self.small(scope)}, {end})"
        kind = self.chance.random()
        fitting = [i for i in scope.indices if i.end <= end]
        if kind < 0.4 and fitting:
            return self.moved(scope, end)
        if kind < 0.5 and scope.indices:
            index = self.chance.choice(scope.indices)
            number = self.chance.randrange(8)
            return self.chance.choice(
                (
                    f"({index.name} * {self.chance.randint(1, 3)} + {number}) % {end}",
                    f"T.min({index.name}, {end - 1})",
                    f"({index.name} - {number}) % {end}",
                )
            )
        if kind < 0.75 and self.nested < _NESTED:
            value = self.value(scope, "int32", _DEPTH)
            bounded = [f"({value}) % {end}", f"T.max(T.min({value}, {end - 1}), 0)"]
            if end & (end - 1) == 0:
                bounded.append(f"({value}) & {end - 1}")
            return self.chance.choice(bounded)
        if kind < 0.85 and self.checks and self.nested < _NESTED:
            return f"T.checked_index({self.small(scope)}, {end})"
        return str(self.chance.randrange(end))

    def moved(self, scope: Scope, end: int) -> str:
        """A sum of variables and a number that is below `end`."""
        fitting = [i for i in scope.indices if i.end <= end]
        index = self.chance.choice(fitting)
        text, rest = index.name, end - index.end
        others = [i for i in fitting if i.end <= rest + 1 and i is not index]
        if others and self.happens(0.6):
            second = self.chance.choice(others)
            text, rest = f"{text} + {second.name}", rest - second.end + 1
        if rest and self.happens(0.5):
            text += f" + {self.chance.randint(0, rest)}"
        return text if self.happens(0.85) else f"{end - 1} - ({text})"

    def small(self, scope: Scope) -> str:
        """A loaded index, which is checked."""
        buffers = [b for b in scope.readable("int32") if b.small]
        if self.nested > _NESTED:
            return str(self.chance.randrange(4))
        if not buffers or self.happens(0.1):
            return f"({self.value(scope, 'int32', _DEPTH)}) % 8"
        return self.element(scope, self.chance.choice(buffers))

    def element(self, scope: Scope, buffer: Buffer) -> str:
        """An element of a buffer."""
        return f"{buffer.name}[{', '.join(self.indices(scope, buffer))}]"

    def indices(self, scope: Scope, buffer: Buffer) -> list[str]:
        pairs = zip(scope.place(buffer), buffer.shape, strict=True)
        self.nested += 1
        result = [self.index(scope, end) if place == "*" else place for place, end in pairs]
        self.nested -= 1
        return result

    # ------------------------------------------------------------------------------ values

    def number(self, dtype: str) -> str:
        """A constant of a type."""
        if dtype == "float32":
            return f"T.float32({self.chance.randint(-16, 16) / 4})"
        bits = int(dtype.lstrip("uint"))
        high = 2 ** (bits - (not dtype.startswith("u"))) - 1
        low = 0 if dtype.startswith("u") else -high - 1
        value = self.chance.randint(1, 9)
        if self.happens(0.08):
            value = self.chance.choice((high, low, high - 1))
        elif low and self.happens(0.3):
            value = -value
        return f"T.{dtype}({value})"

    def value(self, scope: Scope, dtype: str, depth: int = 0) -> str:
        """A value of a type."""
        kind = self.chance.random()
        if kind < 0.4 or depth > _DEPTH or self.nested >= _NESTED:
            return self.leaf(scope, dtype)
        if kind < 0.5 and self.effects and (found := self.update(scope, dtype)):
            return found
        if kind < 0.6:
            return self.choice(scope, dtype, depth)
        if kind < 0.68:
            other = self.chance.choice([t for t in (*INTEGERS, "float32") if t != dtype])
            return f'T.Cast("{dtype}", {self.value(scope, other, depth + 1)})'
        if kind < 0.73 and dtype != "float32":
            name = self.name("q")
            inner = scope.new(values=(*scope.values, (name, dtype)))
            body = self.value(inner, dtype, depth + 1)
            whole = f"{name} + {body}" if self.happens(0.5) else f"{body} - {name}"
            return f"T.Let({whole}, where={{{name}: {self.typed(scope, dtype, depth + 1)}}})"
        a, b = self.value(scope, dtype, depth + 1), self.leaf(scope, dtype)
        if self.happens(0.5):
            a, b = b, a
        return self.operation(dtype, a, b)

    def typed(self, scope: Scope, dtype: str, depth: int) -> str:
        """A value that is no plain number."""
        return f'T.Cast("{dtype}", {self.value(scope, "int32", depth)})'

    def operation(self, dtype: str, a: str, b: str) -> str:
        if dtype == "float32":
            forms = [f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"({a} / ({b} * {b} + 1.0))"]
            return self.chance.choice(forms)
        number = f"T.{dtype}({self.chance.choice((2, 3, 4, 7))})"
        forms = [
            f"({a} + {b})", f"({a} - {b})", f"({a} * {b})", f"T.min({a}, {b})",
            f"T.max({a}, {b})", f"({a} // {number})", f"({a} % {number})", f"({a} ^ {b})",
            f"({a} & {b})", f"({a} | {b})", f"({a} << {number})", f"({a} >> {number})",
        ]  # fmt: skip
        if dtype in ("int32", "int64") and self.checks:
            forms.append(f"({a} // T.checked_divisor({b} | T.{dtype}(1)))")
            if self.happens(0.1):
                forms = [f"({a} % T.checked_divisor({b}))"]
        return self.chance.choice(forms)

    def leaf(self, scope: Scope, dtype: str) -> str:
        kind = self.chance.random()
        named = [n for n, t in (*scope.values, *scope.scalars) if t == dtype]
        if kind < 0.2 and named:
            return self.chance.choice(named)
        if kind < 0.3 and scope.indices and dtype != "float32":
            index = self.chance.choice(scope.indices).name
            return f'T.Cast("{dtype}", {index})'
        if kind < 0.35 and scope.sizes:
            return f'T.Cast("{dtype}", {self.chance.choice(scope.sizes)})'
        buffers = self.there(scope, scope.readable(dtype))
        if kind < 0.85 and buffers:
            return self.element(scope, self.chance.choice(buffers))
        return self.number(dtype)

    def there(self, scope: Scope, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The buffers with elements here, and a few that may have none."""
        some = self.checks and self.nested < _NESTED and self.happens(_UNCERTAIN)
        return [b for b in buffers if some or self.certain(scope, b)]

    @staticmethod
    def certain(scope: Scope, buffer: Buffer) -> bool:
        """Whether an element exists without a check."""
        symbols = {i.symbol for i in scope.indices}
        return all(isinstance(size, int) or size in symbols for size in buffer.shape)

    def update(self, scope: Scope, dtype: str) -> str:
        """The result of an atomic update, "" if there is nothing to update."""
        buffers = [b for b in self.there(scope, scope.writable(dtype)) if not b.small]
        if not buffers or dtype not in ("int32", "int64"):
            return ""
        element = self.element(scope, self.chance.choice(buffers))
        how = self.chance.choice(_EFFECTS)
        return f"T.atomic_{how}({element}, {self.leaf(scope, dtype)})"

    def choice(self, scope: Scope, dtype: str, depth: int) -> str:
        test = self.condition(scope, depth + 1)
        if self.happens(0.4):
            a, b = (self.quietly(self.value, scope, dtype, depth + 1) for _ in range(2))
            return f"T.Select({test}, {a}, {b})"
        a, b = (self.value(scope, dtype, depth + 1) for _ in range(2))
        return f"T.if_then_else({test}, {a}, {b})"

    def condition(self, scope: Scope, depth: int = 1) -> str:
        """A comparison, or two."""
        kind = self.chance.random()
        first = self.unchecked(self.compared, scope, depth)
        if kind < 0.2:
            return f"({first} and {self.quietly(self.compared, scope, depth)})"
        if kind < 0.3:
            return f"({first} or {self.quietly(self.compared, scope, depth)})"
        if kind < 0.35:
            return f"(not {first})"
        return first

    def compared(self, scope: Scope, depth: int) -> str:
        how = self.chance.choice(_COMPARE)
        if scope.indices and self.happens(0.4):
            index = self.chance.choice(scope.indices)
            limits: Sequence[str] = [str(self.chance.randint(0, index.end)), *scope.sizes]
            return f"({index.name} {how} {self.chance.choice(limits)})"
        dtype = self.chance.choice((*INTEGERS, "int32", "int32", "float32"))
        return f"({self.value(scope, dtype, depth + 1)} {how} {self.number(dtype)})"
