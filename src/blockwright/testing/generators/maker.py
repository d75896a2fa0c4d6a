"""What every stage of a random program needs: sizes, inputs, and tensors to go on from."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from blockwright import ir
from blockwright.ir.attributes import LOWER_BOUND, NUM_OUTPUTS, UPPER_BOUND
from blockwright.script.compute import Program, Tensor
from blockwright.testing.arrays import MOST

INT64 = ir.dtype_of("int64")
_SIZES = (1, 2, 3, 5, 7, 8, 12, 16)
_KEPT = 0.1  # how often what a later stage uses is an output too


class Maker:
    """A program in the making: the tensors there are, and those that nothing uses yet.

    Args:
        chance: decides everything.
        symbolic: whether there are symbols.
        dtype: element type of the float tensors.
        seed: names the program.
        empty: whether a stage may make a tensor without elements where no size is a symbol.
    """

    def __init__(
        self, chance: random.Random, symbolic: bool, dtype: str, seed: int, *, empty: bool = False
    ) -> None:
        self.empty = empty
        self.chance = chance
        self.dtype = dtype
        self.program = Program(f"random_{seed}")
        self.symbols = [ir.Var(n, INT64) for n in ("n", "m")] if symbolic else []
        self.tensors: list[Tensor] = []
        self.unused: list[Tensor] = []
        self.consumed: list[Tensor] = []
        self.count = 0
        rank = chance.choice((1, 2, 2, 2, 3))
        self.param([self.size() for _ in range(rank)])

    def size(self) -> ir.Expr:
        if self.symbols and self.chance.random() < 0.5:
            return self.chance.choice(self.symbols)
        return ir.const(self.chance.choice(_SIZES), INT64)

    def param(self, shape: list[ir.Expr], dtype: str | None = None) -> Tensor:
        tensor = self.program.param(self.name("in"), shape, dtype or self.dtype)
        if dtype is None:
            self.tensors.append(tensor)
        return tensor

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, *, rank: int = 0) -> Tensor:
        """A tensor of at least some rank; recent ones are likelier, and count as used."""
        fitting = [t for t in self.tensors if len(t.shape) >= rank]
        tensor = (
            self.chance.choice(fitting[-3:])
            if fitting
            else self.param([self.size() for _ in range(rank)])
        )
        self.use(tensor)
        return tensor

    def use(self, tensor: Tensor) -> None:
        if any(t is tensor for t in self.unused):
            self.unused = [t for t in self.unused if t is not tensor]
            self.consumed.append(tensor)

    def made(self, tensor: Tensor) -> None:
        self.tensors.append(tensor)
        self.unused.append(tensor)

    def finish(self) -> ir.PrimFunc:
        bounds = {s.name: MOST for s in self.symbols}
        kept = [t for t in self.consumed if self.chance.random() < _KEPT]
        outputs = [*self.unused, *kept]
        attrs: dict[str, Any] = {NUM_OUTPUTS: len(outputs)}
        if bounds:
            attrs[UPPER_BOUND] = bounds
            attrs[LOWER_BOUND] = dict.fromkeys(bounds, 1)
        return self.program.finish(outputs, attrs)

    def compute(self, shape: Sequence[Any], body: Callable[..., Any]) -> Tensor:
        return self.program.compute(self.name("t"), shape, body)
