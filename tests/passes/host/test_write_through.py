"""Updates of inputs are computed in the caller's memory where nothing reads the old content."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph.updates import overwritten_arguments

torch = pytest.importorskip("torch")

COPY = """
@T.prim_func(private=True)
def overwrite(old: T.Buffer((8,), "float32"), new: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("old"):
            v = T.axis.spatial(8, i)
            old[v] = new[v]
"""
CALL = """
    new = R.call_tir(cls.update, (x, y), R.Tensor((8,), "float32"))
"""
DONE = """
    done = R.call_tir_inplace(
        cls.overwrite, (x, new), inplace_indices=[0], out_sinfo=R.Tensor((8,), "float32")
    )
"""
HEAD = """
@R.function
def main(x: R.Tensor((8,), "float32"), y: R.Tensor((2,), "float32")):
"""
UPDATE = """
@T.prim_func(private=True)
def update(
    x: T.Buffer((8,), "float32"), y: T.Buffer((2,), "float32"), out: T.Buffer((8,), "float32")
):
"""
BEFORE = """
    for i in range(8):
        with T.block("kept"):
            v = T.axis.spatial(8, i)
            out[v] = x[v]
    for i in range(2):
        with T.block("new"):
            v = T.axis.spatial(2, i)
            out[v * 3] = y[v] + T.float32(1)
"""
AFTER = """
    for i in range(2):
        with T.block("new"):
            v = T.axis.spatial(2, i)
            out[v * 3] = y[v] + T.float32(1)
    for i in range(8):
        with T.block("kept"):
            v = T.axis.spatial(8, i)
            out[v] = x[v]
"""
TOGETHER = """
    for i in range(8):
        with T.block("kept"):
            v = T.axis.spatial(8, i)
            out[v] = x[v]
        with T.block("new"):
            v = T.axis.spatial(8, i)
            out[7 - v] = y[v // 4]
"""
TURNED = """
    for i in range(8):
        with T.block("new"):
            v = T.axis.spatial(8, i)
            out[v] = x[7 - v] + y[v // 4]
"""
SAME_PLACE = """
    for i in range(8):
        with T.block("new"):
            v = T.axis.spatial(8, i)
            out[v] = x[v] + y[v // 4]
"""
UNRELATED = """
    for i in range(8):
        with T.block("new"):
            v = T.axis.spatial(8, i)
            out[v] = y[v // 4]
"""

CASES: dict[str, tuple[str, str, bool]] = {
    "some elements": (BEFORE, CALL + DONE + "    return done", True),
    "elements in place": (SAME_PLACE, CALL + DONE + "    return R.sum(done), done", True),
    "a value of other inputs": (UNRELATED, CALL + DONE + "    return done", True),
    "kept elements are written last": (AFTER, CALL + DONE + "    return done", False),
    "kept elements are written between": (TOGETHER, CALL + DONE + "    return done", False),
    "elements move": (TURNED, CALL + DONE + "    return done", False),
    "the old value is read later": (
        BEFORE,
        CALL + '    old = R.call_tir(cls.overwritten, (x,), R.Tensor((8,), "float32"))' + DONE
        + "    return done, old",
        False,
    ),
    "the new value is a result": (BEFORE, CALL + DONE + "    return done, new", False),
}  # fmt: skip
OLD = """
@T.prim_func(private=True)
def overwritten(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("y"):
            v = T.axis.spatial(8, i)
            y[v] = T.exp(x[v])
"""


@pytest.mark.parametrize("name", CASES)
def test_what_may_be_written_in_place(parse: Any, name: str) -> None:
    update, body, direct = CASES[name]
    module = parse(UPDATE + update + COPY + OLD + HEAD + body)
    exe = bw.compile(module)
    x, y = np.arange(8, dtype="f4"), np.array([20, 30], "f4")
    mine, wanted = x.copy(), x.copy()
    found, expected = exe(mine, y), bw.interpret(module, wanted, y)
    np.testing.assert_array_equal(mine, wanted)
    for ours, theirs in zip(flat(found), flat(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert copies(exe) == (0 if direct else 1)


PARTIAL = {
    "some of the elements": COPY.replace("8, i", "2, i").replace("range(8)", "range(2)"),
    "a predicate": COPY.replace("            old[", "            T.where(i < 2)\n            old["),
    "a condition": """
@T.prim_func(private=True)
def overwrite(old: T.Buffer((8,), "float32"), new: T.Buffer((8,), "float32")):
    for i in range(8):
        if new[i] > T.float32(30):
            with T.block("old"):
                v = T.axis.spatial(8, i)
                old[v] = new[v]
""",
    "a statement after it": COPY + "    old[1] = T.float32(-5)\n",
    "a return before it": COPY.replace(
        "    for i", "    if new[0] > T.float32(20):\n        T.ret()\n    for i", 1
    ),
}


@pytest.mark.parametrize("name", PARTIAL)
def test_a_program_that_does_not_copy_everything_is_called(parse: Any, name: str) -> None:
    module = parse(UPDATE + BEFORE + PARTIAL[name] + HEAD + CALL + DONE + "    return done")
    x, y = np.arange(8, dtype="f4"), np.array([20, 30], "f4")
    new = x.copy()
    new[[0, 3]] = 21, 31
    wanted = {
        "some of the elements": [*new[:2], *x[2:]],
        "a predicate": [*new[:2], *x[2:]],
        "a condition": np.where(new > 30, new, x),
        "a statement after it": [new[0], -5, *new[2:]],
        "a return before it": x,
    }[name]
    for run in (partial(bw.interpret, module), bw.compile(module)):
        mine = x.copy()
        np.testing.assert_array_equal(run(mine, y), wanted)
        np.testing.assert_array_equal(mine, wanted)


def test_a_program_with_another_result_is_called(parse: Any) -> None:
    module = parse(
        """
@T.prim_func(private=True)
def overwrite(
    old: T.Buffer((8,), "float32"), new: T.Buffer((8,), "float32"), more: T.Buffer((), "float32")
):
    for i in range(8):
        with T.block("old"):
            v = T.axis.spatial(8, i)
            old[v] = new[v]
    more[()] = T.float32(3)

@R.function
def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
    new = R.exp(y)
    both = R.call_tir_inplace(
        cls.overwrite,
        (x, new),
        inplace_indices=[0, -1],
        out_sinfo=[R.Tensor((8,), "float32"), R.Tensor((), "float32")],
    )
    return both[0], both[1]
"""
    )
    x, y = np.zeros(8, "f4"), np.arange(8, dtype="f4")
    done, more = bw.compile(module)(x, y)
    np.testing.assert_allclose(done, np.exp(y), rtol=1e-6)
    np.testing.assert_array_equal(x, done)
    assert more == 3


BARE = {
    "a statement": "    out[1] = y[0]\n",
    "a loop": "    for i in range(8):\n        out[i] = y[1]\n",
    "a return": "    if y[0] > T.float32(100):\n        T.ret()\n",
    "a view": """
    part = T.decl_buffer((4,), "float32", data=out.data)
    for i in range(4):
        with T.block("part"):
            v = T.axis.spatial(4, i)
            part[v] = y[1]
""",
}


@pytest.mark.parametrize("name", BARE)
def test_what_the_copy_overwrites_stays_overwritten(parse: Any, name: str) -> None:
    """Statements before the copy of the old elements, outside of blocks or through views."""
    module = parse(UPDATE + BARE[name] + BEFORE + COPY + HEAD + CALL + DONE + "    return done")
    x, y = np.arange(8, dtype="f4"), np.array([20, 30], "f4")
    wanted = x.copy()
    wanted[[0, 3]] = 21, 31
    for run in (partial(bw.interpret, module), bw.compile(module)):
        mine = x.copy()
        np.testing.assert_array_equal(run(mine, y), wanted)
        np.testing.assert_array_equal(mine, wanted)


def flat(value: Any) -> list[Any]:
    return [*value] if type(value) is tuple else [value]


def copies(exe: Any) -> int:
    """Calls that copy a value over a parameter."""
    (run,) = [run for run in exe.passes.runs if run.name == "write_through"]
    values = [b.value for b in run.after["main"].bindings if isinstance(b, ir.VarBinding)]
    updates = [v for v in values if isinstance(v, ir.GraphCall) and overwritten_arguments(v)]
    return sum(getattr(v.args[0], "name", "").startswith("overwrite") for v in updates)


def append(cache: Any, x: Any, at: Any) -> Any:
    cache.index_copy_(1, at, x)
    return (cache * 2).sum()


def add(cache: Any, x: Any, at: Any) -> Any:
    cache.add_(x)
    return cache.sum()


def assign(cache: Any, x: Any, at: Any) -> Any:
    cache[:, 3:4] = x * 2
    return cache.sum()


def twice(cache: Any, x: Any, at: Any) -> Any:
    cache[:, 3:4] = x
    cache.mul_(2)
    return cache[:, 1:5].sum()


def swapped(cache: Any, x: Any, at: Any) -> Any:
    cache.copy_(cache.flip(1))
    return x + 1


@pytest.mark.parametrize(
    ("change", "left"), [(append, 0), (add, 0), (assign, 0), (twice, 0), (swapped, 1)]
)
def test_updates_of_pytorch_models(change: Callable[..., Any], left: int) -> None:
    class Model(torch.nn.Module):
        def forward(self, cache: Any, x: Any, at: Any) -> Any:
            return change(cache, x, at)

    def inputs(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return [torch.randn(2, 8, 5), torch.randn(2, 1, 5), torch.tensor([6])]

    exe = bw.compile(Model().eval(), tuple(inputs(0)))
    ours, theirs = inputs(1), inputs(1)
    torch.testing.assert_close(exe(*ours), change(*theirs))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    assert copies(exe) == left
