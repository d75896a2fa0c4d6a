"""Lists that are computed from sizes, in integer and float types, joined with constants.

    Shape → Cast(float) → Concat(1.6) → Floor → Mul(2) → Equal(4)

The importer evaluates such lists as far as they are integers; a fraction or a rounded product must
not be lost.
"""

from __future__ import annotations

import random

import numpy as np

from fuzzing.onnx_graphs.drawer import Drawer, Value
from fuzzing.onnx_graphs.operators import draws
from fuzzing.onnx_graphs.program import OnnxProgram

_TYPES = ("float32", "float32", "float32", "float64", "float16", "int64", "int64", "int32", "bool")
_FRACTIONS = (0.5, 0.5, 0.25, 1.5, 0.125, 8.0, 1.6, 2.7, -1.5, 0.3, 1 / 3, 2.0, 4.0, -3.0, 0.0)
_WHOLE = (1, 2, 3, -3, 4, 7)
_MOST = 1 << 20
_JUMPS = frozenset({"Cast", "Floor", "Ceil", "Round", "Equal", "Less"})


@draws(3)
def sizes_in_a_list(d: Drawer) -> Value | None:
    x = d.pick(lambda v: v.rank >= 1)
    shape = x and d.add("Shape", [x], exact=True)
    return shape and steps(d, shape, d.chance.randint(2, 6))


def size_program(seed: int, *, dynamic: bool) -> OnnxProgram:
    """A graph of such lists only, whose operations may round."""
    chance = random.Random(seed)
    sizes = [{"n": n, "m": m} for n, m in ((3, 5), (8, 1), (0, 7))]
    d = Drawer(seed, 18, sizes if dynamic else sizes[:1])
    x = d.input(("n", 4, "m") if dynamic else (3, 4, 5), "float32")
    while len(d.nodes) < 12:
        shape = d.add("Shape", [x], exact=True)
        assert shape is not None
        steps(d, shape, chance.randint(2, 8), rounded=True)
    made = [v.name for v in d.values[1:]]
    calls = tuple({"x0": array} for array in x.arrays)
    program = OnnxProgram(d.opset, tuple(d.inputs), d.constants, tuple(d.nodes), (), calls)
    return program.trimmed(made)


def steps(d: Drawer, x: Value, count: int, *, rounded: bool = False) -> Value:
    """A list after some operations.

    Arguments:
        rounded: also operations that jump are drawn with operands that are not exact.
    """
    if d.maybe(0.7):
        x = d.add("Cast", [x], exact=True, to=d.kind("float32")) or x
    for _ in range(count):
        made = d.chance.choice((_cast, _cast, _joined, _chosen, _one, _two, _two, _part))(d, x)
        jumps = made is not None and d.nodes[-1].op in _JUMPS
        if made is None or (jumps and not rounded and not x.exact):
            continue
        if any(a.size and np.abs(a.astype(np.float64)).max() > _MOST for a in made.arrays):
            break
        x = made
    return x


def _numbers(d: Drawer, dtype: str, count: int) -> Value:
    if dtype == "bool":
        return d.constant([d.maybe(0.5) for _ in range(count)], dtype)
    choices = _FRACTIONS if np.dtype(dtype).kind == "f" else _WHOLE
    return d.constant([d.chance.choice(choices) for _ in range(count)], dtype)


def _cast(d: Drawer, x: Value) -> Value | None:
    return d.add("Cast", [x], exact=True, to=d.kind(d.chance.choice(_TYPES)))


def _joined(d: Drawer, x: Value) -> Value | None:
    parts = [x, _numbers(d, x.dtype, d.chance.randint(1, 2))]
    d.chance.shuffle(parts)
    return d.add("Concat", parts, exact=True, axis=0)


def _chosen(d: Drawer, x: Value) -> Value | None:
    branches = [x, _numbers(d, x.dtype, x.shape[0])]
    d.chance.shuffle(branches)
    return d.add("Where", [_numbers(d, "bool", x.shape[0]), *branches], exact=True)


def _one(d: Drawer, x: Value) -> Value | None:
    if x.dtype == "bool":
        return d.add("Not", [x], exact=True)
    ops = (
        ("Floor", "Ceil", "Floor", "Ceil", "Round", "Neg", "Relu")
        if x.is_float
        else ("Neg", "Relu")
    )
    return d.add(d.chance.choice(ops), [x], exact=True)


def _two(d: Drawer, x: Value) -> Value | None:
    if x.dtype == "bool":
        return None
    op = d.chance.choice(("Add", "Sub", "Mul", "Mul", "Div", "Div", "Max", "Min", "Equal", "Less"))
    operands = [x, _numbers(d, x.dtype, d.chance.choice((1, x.shape[0])))]
    if op != "Div" or all(a.all() for a in x.arrays):
        d.chance.shuffle(operands)
    return d.add(op, operands, exact=True)


def _part(d: Drawer, x: Value) -> Value | None:
    size = x.shape[0]
    kind = d.chance.choice(("gather", "slice", "reduce"))
    if kind == "gather":
        places = [d.chance.randrange(-size, size) for _ in range(d.chance.randint(1, 4))]
        return d.add("Gather", [x, d.constant(places)], exact=True)
    if kind == "slice":
        begin, step = d.chance.choice(((0, 1), (1, 1), (0, 2), (-1, -1), (-9, -1)))
        bounds = [d.constant([v]) for v in (begin, 9 if step > 0 else -99, 0, step)]
        sliced = d.add("Slice", [x, *bounds], exact=True)
        return sliced if sliced is not None and sliced.shape[0] else None
    if x.dtype == "bool":
        return None
    op = d.chance.choice(("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd"))
    if x.is_float and size > 2 and op in ("ReduceSum", "ReduceProd"):
        return None  # the order in which it rounds is not specified
    return d.add(op, [x], exact=True, keepdims=1)
