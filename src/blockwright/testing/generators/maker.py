"""Base of all stages of a random program: sizes, inputs, and the tensors to continue from."""

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
_KEPT = 0.1  # probability that a tensor used by a later stage is an output too


class Maker:
    """A program under construction: its tensors, and those not used yet.

    Args:
        chance: source of all random choices.
        symbolic: whether sizes may be symbols.
        dtype: element type of the float tensors.
        seed: part of the program's name.
        empty: whether a stage may create a tensor without elements even with constant sizes.
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
        """Draw a tensor of at least a rank, among the latest three; it counts as used."""
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
