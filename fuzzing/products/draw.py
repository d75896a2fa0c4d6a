"""Draw products by seed."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from blockwright.target import Target
from fuzzing.products.product import Product

TARGETS = (
    "native", "native", "x86-64", "x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4",
    "x86-64-v4+avx512vnni", "x86-64-v4+avx512bf16", "x86-64-v4+avx512vnni+avx512bf16",
    "x86-64-v4+avx512vnni+avx512bf16+amx-tile+amx-int8+amx-bf16",
)  # fmt: skip
"""Targets of x86-64 processors; those that this machine cannot run are not drawn."""
EQUATIONS = (
    "mk,kn->mn", "mk,nk->mn", "km,kn->mn", "bmk,bkn->bmn", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd",
    "bmk,kn->bmn", "mk,kn->nm", "bij,bij->b", "abk,kn->abn", "mk,k->m",
)  # fmt: skip
_FLOATS = ("bfloat16", "bfloat16", "float16", "float32")
_BYTES = (("uint8", "int8"), ("int8", "int8"), ("int8", "uint8"), ("uint8", "uint8"))
_ROWS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 48, 64, 70)
_DEPTHS = (1, 2, 3, 4, 7, 15, 16, 31, 32, 33, 63, 64, 65, 96, 130, 257, 530)
_COLUMNS = (1, 2, 5, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65, 100, 129)
_FEW = (1, 2, 3, 5)


def targets_here() -> list[str]:
    """The targets that this machine can run."""
    return [name for name in TARGETS if Target(name).is_host]


def draw(seed: int) -> Product:
    """The product of a seed."""
    chance = random.Random(seed)
    form = chance.choice(("matmul", "matmul", "linear", "batched", "einsum", "conv1d", "conv2d"))
    whole = chance.random() < 0.45 and form != "einsum"
    first, second = chance.choice(_BYTES) if whole else (chance.choice(_FLOATS),) * 2
    types = (first, second, "int32" if whole else first)
    given = _FORMS[form](chance)
    symbolic = tuple(axis for axis in given.pop("free", (0,)) if chance.random() < 0.4)
    shared = given.get("shared", ())
    fixed = any(mine in symbolic for mine, _ in shared)
    usual = tuple(given["x"][axis] for axis in symbolic)
    sizes = (usual, *(tuple(chance.choice(_ROWS) for _ in symbolic) for _ in symbolic[:2]))
    return Product(
        **given,
        types=types,
        symbolic=symbolic,
        sizes=sizes,
        steps=_steps(chance, form, whole, bool(symbolic)),
        constant=not fixed and chance.random() < 0.5,
        exact=chance.random() < 0.4,
        target=chance.choice(targets_here()),
        threads=chance.choice((1, 2)),
    )


def _steps(chance: random.Random, form: str, whole: bool, symbolic: bool) -> tuple[str, ...]:
    kinds = ["bias", "relu", "residual"] if whole else ["bias", "relu", "residual", "scale", "tanh"]
    if form == "einsum" or symbolic:
        kinds.remove("residual")
    steps = chance.sample(kinds, chance.randint(0, 2))
    steps += (
        [["float"], ["float", "scale"]][chance.randrange(2)]
        if whole and chance.random() < 0.4
        else []
    )
    return tuple(steps)


def _matmul(chance: random.Random) -> dict[str, Any]:
    m, k, n = chance.choice(_ROWS), chance.choice(_DEPTHS), chance.choice(_COLUMNS)
    shared = ((1, 0),)
    return {
        "form": "matmul",
        "x": (m, k),
        "w": (k, n),
        "shared": shared,
        "free": (0, 0, 1)[: 2 + (chance.random() < 0.3)],
    }


def _linear(chance: random.Random) -> dict[str, Any]:
    k, n = chance.choice(_DEPTHS), chance.choice(_COLUMNS)
    lead = tuple(chance.choice(_FEW) for _ in range(chance.randint(0, 2)))
    return {"form": "linear", "x": (*lead, chance.choice(_ROWS), k), "w": (n, k)}


def _batched(chance: random.Random) -> dict[str, Any]:
    m, k, n = chance.choice(_ROWS), chance.choice(_DEPTHS), chance.choice(_COLUMNS)
    b, c = chance.choice(_FEW), chance.choice(_FEW)
    x, w, shared = chance.choice((
        ((b, m, k), (b, k, n), ((0, 0),)),
        ((b, c, m, k), (b, c, k, n), ((0, 0), (1, 1))),
        ((b, c, m, k), (c, k, n), ((1, 0),)),
        ((b, m, k), (1, k, n), ()),
        ((b, m, k), (k, n), ()),
        ((1, m, k), (b, k, n), ()),
    ))  # fmt: skip
    free = (0, len(x) - 2) if x[0] != 1 else (len(x) - 2,)
    return {"form": "matmul", "x": x, "w": w, "shared": shared, "free": free}


def _einsum(chance: random.Random) -> dict[str, Any]:
    equation = chance.choice(EQUATIONS)
    first, second = equation.partition("->")[0].split(",")
    pool = {"k": _DEPTHS, "d": _DEPTHS, "n": _COLUMNS, "b": _FEW, "a": _FEW, "h": _FEW}
    few = {
        name: _FEW if name == "d" and "q" not in equation else pool.get(name, _ROWS)
        for name in first + second
    }
    size = {name: chance.choice(kinds) for name, kinds in sorted(few.items())}
    if "q" in equation:
        size["k"] = chance.choice(_ROWS)
    shared = tuple((i, second.index(name)) for i, name in enumerate(first) if name in second)
    return {
        "form": "einsum", "equation": equation, "shared": shared,
        "x": tuple(size[name] for name in first), "w": tuple(size[name] for name in second),
    }  # fmt: skip


def _convolution(chance: random.Random, axes: int) -> dict[str, Any]:
    groups = chance.choice((1, 1, 1, 2))
    c, o = groups * chance.choice((1, 3, 4, 8, 16, 20)), groups * chance.choice((1, 2, 8, 17, 32))
    window = tuple(chance.choice((1, 3, 3, 2, 5)) for _ in range(axes))
    if chance.random() < 0.5:
        window = (3,) * axes
    dilation, padding = chance.choice((1, 1, 2)), chance.choice((0, 1, 2))
    image = tuple(chance.choice((11, 12, 17, 20)) for _ in range(axes))
    attrs = (
        ("strides", chance.choice((1, 1, 2))), ("padding", padding), ("dilation", dilation),
        ("groups", groups),
    )  # fmt: skip
    return {
        "form": f"conv{axes}d", "attrs": attrs,
        "x": (chance.choice(_FEW), c, *image), "w": (o, c // groups, *window),
        "free": (0, 2) if chance.random() < 0.3 else (0,),
    }  # fmt: skip


_FORMS: dict[str, Any] = {
    "matmul": _matmul,
    "linear": _linear,
    "batched": _batched,
    "einsum": _einsum,
    "conv1d": partial(_convolution, axes=1),
    "conv2d": partial(_convolution, axes=2),
}
