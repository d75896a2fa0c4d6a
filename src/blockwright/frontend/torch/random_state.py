"""The random number generator of an imported program: a variable of its state.

    generator = (seed, position)

A program with random operators has it as its last parameter. Each operator takes the numbers of
another position, and the program moves the position on by their number.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.torch.input_updates import InputUpdates
from blockwright.graph import GraphBuilder, shape_value
from blockwright.runtime.state import RANDOM
from blockwright.support import ImporterError

_PARAMETER = "generator"


class RandomState:
    """The generator of a graph function that is being built.

    Attributes:
        params: its parameter → its variable, once a random operator has been added.
    """

    def __init__(self, builder: GraphBuilder, updates: InputUpdates) -> None:
        self._builder, self._updates = builder, updates
        self._generator: ir.GraphVar | None = None
        self._steps = 0
        self._refused = ""
        self.params: dict[str, str] = {}

    def bits(self, shape: tuple[ir.Expr, ...], dtype: str) -> ir.GraphVar:
        """New random bits, as "uint32" or "uint64"."""
        if self._refused:
            raise ImporterError(
                f"a random operator in {self._refused}",
                code="BW507",
                help="draw the numbers of all steps before it",
            )
        if self._generator is None:
            info = ir.TensorInfo((ir.const(2, "int64"),), ir.dtype_of("int64"), 1)
            self._generator = self._builder.param(_PARAMETER, info)
            self._updates.parameter(RANDOM, self._generator, ())
            self.params[self._generator.name] = RANDOM
        step, self._steps = self._steps, self._steps + 1
        return self._builder.op(
            "random_bits", self._generator, shape_value(shape), step=step, dtype=dtype
        )

    @contextmanager
    def refused(self, place: str) -> Generator[None]:
        """Meanwhile, random operators are an error: each would give the same numbers every time."""
        before, self._refused = self._refused, place
        try:
            yield
        finally:
            self._refused = before

    def advance(self) -> None:
        """Move the position of the generator beyond all steps of the program."""
        if self._generator is not None:
            used: Any = np.array([0, self._steps])
            self._updates.write(RANDOM, self._builder.op("add", self._generator, used))
