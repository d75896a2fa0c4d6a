"""Races between stores outside of blocks."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw

HEAD = """
@T.prim_func
def f(X: T.Buffer((3, 4), "float32"), Y: T.Buffer((3, 4), "float32")):
"""
RACES = {
    "one row": """
    for i in T.parallel(3):
        for j in range(4):
            Y[0, j] = X[i, j]
""",
    "one element": """
    for i in T.parallel(3):
        Y[0, 0] = Y[0, 0] + X[i, 0]
""",
    "neighbor": """
    for i in T.parallel(2):
        Y[i, 0] = Y[i + 1, 0] + X[i, 0]
""",
    "lanes": """
    for i in T.vectorized(3):
        Y[0, 0] = X[i, 0]
""",
    "named value": """
    for i in T.parallel(3):
        v: T.float32 = X[i, 0]
        Y[0, 0] = v
""",
    "inner loop": """
    for j in range(4):
        for i in T.parallel(3):
            Y[0, j] = X[i, j]
""",
    "beside blocks": """
    for a in T.parallel(3):
        with T.block("b"):
            va = T.axis.spatial(3, a)
            Y[va, 3] = X[va, 3]
    for i in T.parallel(3):
        Y[0, 0] = X[i, 0]
""",
    "with a block": """
    for a in T.parallel(3):
        Y[0, 3] = X[a, 0]
        with T.block("b"):
            va = T.axis.spatial(3, a)
            Y[va, 3] = X[va, 3]
""",
}
VALID = {
    "beside blocks": """
    for a in T.parallel(3):
        Y[a, 0] = X[a, 0]
        with T.block("b"):
            va = T.axis.spatial(3, a)
            Y[va, 3] = X[va, 3] + Y[va, 0]
    for i in T.parallel(3):
        Y[i, 1] = X[i, 0]
""",
    "rows": """
    for i in T.parallel(3):
        for j in T.vectorized(4):
            Y[i, j] = Y[i, j] + X[2 - i, j]
""",
    "sums": """
    for i in T.parallel(3):
        Y[i, 0] = 0.0
        for j in range(4):
            Y[i, 0] = Y[i, 0] + X[i, j]
""",
    "one iteration writes": """
    for i in T.parallel(3):
        if i == 0:
            Y[0, 0] = X[i, 0]
""",
    "digits": """
    for i in T.parallel(12):
        Y[i // 4, i % 4] = X[i // 4, i % 4]
""",
    "atomic": """
    for i in T.parallel(3):
        T.evaluate(T.atomic_add(Y[0, 0], X[i, 0]))
""",
    "private memory": """
    for i in T.parallel(3):
        z = T.allocate([4], "float32", "global")
        Z = T.decl_buffer((4,), "float32", data=z)
        for j in T.vectorized(4):
            Z[j] = X[i, j]
        for j in range(4):
            Y[i, j] = Z[3 - j]
""",
}


@pytest.mark.parametrize("name", RACES)
def test_stores_of_concurrent_iterations_meet(name: str) -> None:
    program = bw.from_source(HEAD + RACES[name].lstrip("\n"))
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(program)
    assert caught.value.code == "BW240"
    assert caught.value.diagnostics[0].span is not None
    with pytest.raises(bw.InterpretError) as found:
        bw.interpret(program, np.ones((3, 4), "float32"), np.ones((3, 4), "float32"))
    assert found.value.code == "BW756"


@pytest.mark.parametrize("name", VALID)
def test_stores_of_concurrent_iterations_are_apart(name: str) -> None:
    program = bw.from_source(HEAD + VALID[name].lstrip("\n"))
    bw.validate(program)
    bw.interpret(program, np.ones((3, 4), "float32"), np.ones((3, 4), "float32"))


DATA = {
    "condition": ("if X[{i}, 0] > 0.0:", "Y[0, 0] = X[{i}, 1]"),
    "condition and index": ("if X[{i}, 0] > 0.0:", "Y[0, {i}] = X[{i}, 1]"),
    "count": ("for k in range(T.Cast('int32', X[{i}, 0])):", "Y[0, 0] = X[{i}, 1]"),
    "index": ("if {i} >= 0:", "Y[0, T.Cast('int32', X[{i}, 0])] = X[{i}, 1]"),
    "neighbor": ("if X[{i}, 0] > 0.0:", "Y[{i}, 0] = Y[T.max({i} - 1, 0), 0]"),
    "certain": ("if {i} >= 0:", "Y[0, 0] = X[{i}, 1]"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_decides_the_same_for_stores_and_blocks(name: str) -> None:
    """What depends on data is neither proved nor refuted, and found by the interpreter."""
    around, store = DATA[name]
    raw = f"""
    for i in T.parallel(3):
        {around.format(i="i")}
            {store.format(i="i")}
"""
    block = f"""
    for i in T.parallel(3):
        with T.block("b"):
            v = T.axis.spatial(3, i)
            {around.format(i="v")}
                {store.format(i="v")}
"""
    verdicts: list[str] = []
    for body in (raw, block):
        program = bw.from_source(HEAD + body.lstrip("\n"))
        try:
            bw.validate(program)
            verdicts.append("")
        except bw.ValidationError as error:
            verdicts.append(error.code)
        ones = np.ones((3, 4), "float32")
        try:
            bw.interpret(program, ones, ones.copy())
            verdicts.append("")
        except bw.InterpretError as error:
            verdicts.append(error.code)
    races = "" if name == "condition and index" else "BW756"
    certain = "BW240" if name == "certain" else ""
    assert verdicts == [certain, races] * 2
