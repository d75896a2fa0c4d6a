"""Draw ONNX graphs by seed."""

from __future__ import annotations

import random

from fuzzing.onnx_graphs import (
    elementwise,
    movement,
    patterns,
    products,
    reductions,
    size_lists,
)
from fuzzing.onnx_graphs.drawer import Drawer
from fuzzing.onnx_graphs.operators import OPERATORS
from fuzzing.onnx_graphs.program import OnnxProgram

__all__ = ["draw", "elementwise", "movement", "patterns", "products", "reductions", "size_lists"]
# the latter six register their operators

OPSETS = (13, 17, 18, 20, 21, 22, 23)
_ROWS, _COLUMNS = (2, 3, 5, 8, 17), (3, 4, 7, 16)
_TYPES = (
    "float32", "float32", "float32", "int64", "int32", "float64", "float16", "int8", "uint8",
    "bool", "int16", "uint32", "uint16", "uint64",
)  # fmt: skip
_TRIES = 8
"""How often a node is drawn, for each that is wanted."""


def draw(seed: int, most: int = 24) -> OnnxProgram:
    """The graph of a seed; six graphs in ten have symbolic sizes, and three calls."""
    chance = random.Random(seed)
    rows, columns = chance.sample(_ROWS, 2), chance.sample(_COLUMNS, 2)
    sizes = [{"n": n, "m": m} for n, m in zip(rows, columns, strict=True)]
    dynamic = chance.random() < 0.6
    d = Drawer(seed, chance.choice(OPSETS), sizes if dynamic else sizes[:1])
    n, m = ("n", "m") if dynamic else (rows[0], columns[0])
    for dims in ((n, m), (n, 4), (2, n, 8), (n, 4, chance.choice((m, 6)), 6)):
        if dims == (n, m) or chance.random() < 0.7:
            d.input(dims, "float32" if chance.random() < 0.6 else chance.choice(_TYPES))
    d.input(chance.choice(((1,), (), (3,), (m,))), chance.choice(_TYPES))
    names, weights = zip(*((name, w) for name, (_, w) in OPERATORS.items()), strict=True)
    given, wanted = len(d.values), chance.randint(4, most)
    for _ in range(_TRIES * wanted):
        if len(d.nodes) >= wanted:
            break
        OPERATORS[chance.choices(names, weights)[0]][0](d)
    made = [v.name for v in d.values[given:]]
    used = {name for node in d.nodes for name in node.uses}
    outputs = [name for name in made if name not in used]
    outputs += chance.sample(made, min(len(made), chance.randrange(3)))
    calls = tuple(
        {i.name: v.arrays[k] for i, v in zip(d.inputs, d.values, strict=False)}
        for k in range(len(d.sizes))
    )
    program = OnnxProgram(d.opset, tuple(d.inputs), d.constants, tuple(d.nodes), (), calls)
    return program.trimmed(list(dict.fromkeys(outputs)))
