"""Table of what to draw: operators and patterns, with their weights."""

from __future__ import annotations

from collections.abc import Callable

from fuzzing.onnx_graphs.drawer import Drawer

Draw = Callable[[Drawer], object]
OPERATORS: dict[str, tuple[Draw, int]] = {}
"""Name → function that adds nodes (or none), and its weight."""


def draws(weight: int = 1) -> Callable[[Draw], Draw]:
    def register(function: Draw) -> Draw:
        OPERATORS[function.__name__] = function, weight
        return function

    return register
