"""Entries that write their results into memory of the caller: what they check and make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from blockwright import ir
from blockwright.support import ArgumentError, BuildError

INT64 = ir.dtype_of("int64")
n, m = ir.var("n", INT64), ir.var("m", INT64)
ONE: list[Any] = [("x", "float32", (n, 2)), ("y", "float32", (n, 2))]
TWO: list[Any] = [("x", "float32", (n,)), ("y", "float32", (n,)), ("z", "float32", (n,))]


def copy(source: ir.Buffer, target: ir.Buffer) -> ir.Stmt:
    i = ir.var("i", INT64)
    body = ir.BufferStore(target, ir.BufferLoad(source, (i,)), (i,))
    return ir.For(i, ir.const(0, INT64), source.shape[0], ir.ForKind.SERIAL, body)


def copies(source: ir.Buffer, *targets: ir.Buffer) -> ir.Stmt:
    return ir.seq([copy(source, target) for target in targets])


@pytest.fixture(scope="session")
def make(build_flat: Any, flat_program: Any) -> Callable[..., Any]:
    """`make(buffers, results=1)`: a module whose function `f` copies the first to the others."""

    def build(
        buffers: list[Any], results: int = 1, body: Any = copies, scalars: Any = (), **attrs: Any
    ) -> Any:
        attrs["num_outputs"] = results
        return build_flat(flat_program("f", buffers, body, attrs=attrs, scalars=scalars))

    return build


def refused(call: Callable[..., Any], *args: Any) -> tuple[str, str]:
    with pytest.raises(ArgumentError) as caught:
        call(*args)
    return caught.value.code, caught.value.message


def test_the_number_of_arguments_decides(make: Any) -> None:
    module = make(ONE)
    for f in (module["f"], module.entry("f")):
        x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), np.float32)
        assert f(x, y) is None
        assert np.array_equal(x, y)
        assert np.array_equal(np.from_dlpack(f(x)), x)
        assert f(x[:0], y[:0]) is None
    assert module["f"].copies == 0


def test_memory_for_all_results_or_for_none(make: Any) -> None:
    f = make(TWO, 2)["f"]
    x, y, z = (np.full(5, v, np.float32) for v in (7, 0, 0))
    assert f(x, y, z) is None
    assert y.tolist() == z.tolist() == x.tolist()
    with pytest.raises(ArgumentError) as caught:
        f(x, y)
    assert caught.value.code == "BW701"
    assert caught.value.message == "f: expected 1 argument (x), got 2"
    assert caught.value.help == "pass each parameter once; memory for all 2 results may follow"
    assert refused(f, x, y, z, z)[0] == "BW701"


def test_results_of_functions_without_any_are_not_taken(make: Any) -> None:
    f = make(TWO[:2], 0)["f"]
    x = np.zeros(3, np.float32)
    code, text = refused(f, x, x.copy(), x.copy())
    assert (code, text) == ("BW701", "f: expected 2 arguments (x, y), got 3")


def test_kind_type_and_rank(make: Any) -> None:
    f = make(ONE)["f"]
    x = np.zeros((3, 2), np.float32)
    code, text = refused(f, x, 4)
    assert code == "BW702"
    assert text == (
        "result 1 `y` of f: expected a tensor of float32 with shape (n, 2), got an integer"
    )
    assert refused(f, x, None) == ("BW702", "result 1 'y' of f is None, not an array")
    code, text = refused(f, x, np.zeros((3, 2)))
    assert code == "BW703"
    assert text.startswith("result 1 `y` of f: expected float32, got float64")
    code, text = refused(f, x, np.zeros(6, np.float32))
    assert code == "BW704"
    assert text.startswith("result 1 `y` of f: expected 2 dimensions, shape (n, 2), got 1")


def test_constant_and_symbolic_extents(make: Any) -> None:
    f = make(
        [("x", "float32", (n,)), ("y", "float32", (n, 2)), ("z", "int32", (ir.mul(n, 3), 4))],
        2,
        lambda *_: ir.Evaluate(ir.const(0, "int32")),
    )["f"]
    x, y, z = np.zeros(5, "float32"), np.zeros((5, 2), "float32"), np.zeros((15, 4), "int32")
    assert f(x, y, z) is None
    assert refused(f, x, np.zeros((5, 3), "float32"), z) == (
        "BW704",
        "result 1 `y` of f: expected dimension 1 to be 2, got 3",
    )
    assert refused(f, x, np.zeros((6, 2), "float32"), z) == (
        "BW709",
        "result 1 `y` of f: expected dimension 0 to be `n` (from argument 1 `x` "
        "dimension 0) = 5, got 6",
    )
    code, text = refused(f, x, y, z[:10])
    assert code == "BW704"
    assert text.startswith("result 2 `z` of f: expected dimension 0 to be ")
    assert text.endswith(" = 15, got 10")


def test_layout(make: Any) -> None:
    module = make(ONE)
    raw, f = module.entry("f"), module["f"]
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    wide = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="BW706: result 1 `y` of f: expected a contiguous"):
        raw(x, wide[:, ::2])
    odd = np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32).reshape(4, 2)
    with pytest.raises(ValueError, match="BW706: result 1 `y` of f: expected memory aligned to 4"):
        raw(x, odd)
    f(x, wide[:, ::2])
    assert np.array_equal(wide[:, ::2], x)
    assert not wide[:, 1::2].any()
    f(x, odd)
    assert np.array_equal(odd, x)
    tensor = torch.frombuffer(bytearray(33), dtype=torch.float32, offset=1).reshape(4, 2)
    f(torch.from_numpy(x), tensor)
    assert np.array_equal(tensor.numpy(), x)
    assert f.copies == 3


def test_memory_at_any_element(make: Any) -> None:
    """Whatever the code knows of results that it allocates, it knows nothing of these."""
    f = make(TWO[:2])["f"]
    x = np.arange(1000, dtype=np.float32)
    room = np.zeros(1032, np.float32)
    for start in range(17):
        f(x, room[start : start + 1000])
        assert np.array_equal(room[start : start + 1000], x)
    assert f.copies == 0


def test_overlap(make: Any) -> None:
    raw = make(TWO, 2).entry("f")
    room = np.zeros(40, np.float32)
    x, y, z = room[:8], room[16:24], room[24:32]
    raw(x, y, z)  # neighbours
    for result, other, arguments in (
        ("result 1 `y`", "argument 1 `x`", (x, room[7:15], z)),
        ("result 2 `z`", "argument 1 `x`", (x, y, x)),
        ("result 2 `z`", "result 1 `y`", (x, y, y)),
        ("result 2 `z`", "result 1 `y`", (x, y, room[23:31])),
    ):
        with pytest.raises(ValueError, match="BW706") as caught:
            raw(*arguments)
        assert f"{result} of f: it is written and overlaps {other}" in str(caught.value)
        assert "help: pass a copy of one of them" in str(caught.value)
    raw(x[:0], x[:0], x[:0])  # nothing meets nothing


def test_functions_that_take_overlapping_memory_take_it_for_results(make: Any) -> None:
    f = make(ONE, **{"tir.noalias": False})["f"]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    f(x, x)
    assert f.copies == 0
    assert x.ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_arguments_make_way_for_results(make: Any) -> None:
    f = make(TWO, 2)["f"]
    room = np.arange(20, dtype=np.float32)
    expected = room[4:12].copy()
    f(room[4:12], room[0:8], room[8:16])
    assert np.array_equal(room[:16], np.tile(expected, 2))
    assert f.copies == 1
    assert refused(f, room[:4].copy(), room[:4], room[2:6])[0] == "BW706"


def test_failing_calls_release_only_what_they_made(make: Any) -> None:
    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        first = ir.BufferLoad(x, (ir.const(0, INT64),))
        return ir.AssertStmt(ir.EQ(first, ir.const(1.0, "float32")), "first element must be 1")

    f = make(TWO[:2], 1, body)["f"]
    x, y = np.zeros(64, np.float32), torch.zeros(64)
    for _ in range(100):
        assert refused(f, x, y)[0] == "BW712"
    assert not y.any()


def test_scalars_may_stand_behind_the_results(make: Any) -> None:
    """Arguments are the parameters that are no results, in order; results follow them."""
    value = ir.var("value", "float32")

    def body(x: ir.Buffer, y: ir.Buffer) -> ir.Stmt:
        return ir.BufferStore(y, value, (ir.const(0, INT64),))

    f = make(TWO[:2], 1, body, [value])["f"]
    assert (f.parameters, f.results) == (("x", "value"), ("y",))
    x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
    assert f(x, 2.5, y) is None
    assert y.tolist() == [2.5, 0, 0]
    assert f(x, 2.5)[0] == 2.5
    assert refused(f, x, 2.5, 2.5)[1].startswith("result 1 `y` of f: expected a tensor")


@pytest.mark.parametrize(("strides", "fits"), [((8, 1), False), ((2, 1), True), ((2, 2), False)])
def test_strides_of_results(build_flat: Any, strides: Any, fits: bool) -> None:
    """What is allocated has no gaps, and neither has what is lent."""
    float32, handle = ir.dtype_of("float32"), ir.dtype_of("handle")
    steps = tuple(ir.const(s, INT64) if isinstance(s, int) else s for s in strides)
    x = ir.Buffer("x", float32, (n, ir.const(2, INT64)))
    y = ir.Buffer("y", float32, (n, ir.const(2, INT64)), strides=steps)
    handles = [ir.var(f"{b.name}_handle", handle) for b in (x, y)]
    func = ir.PrimFunc(
        tuple(handles),
        tuple(zip(handles, (x, y), strict=True)),
        ir.Evaluate(ir.const(0, "int32")),
        {"global_symbol": "f", "num_outputs": 1},
    )
    if fits:
        f = build_flat(func)["f"]
        assert f(np.zeros((3, 2), "f4"), np.zeros((3, 2), "f4")) is None
        return
    with pytest.raises(BuildError, match="result y of f has strides") as caught:
        build_flat(func)
    assert caught.value.code == "BW671"


def test_many_results(make: Any) -> None:
    """Every pair is compared, in a loop."""
    buffers = [("x", "float32", (n,)), *((f"y{i}", "float32", (n,)) for i in range(30))]
    f = make(buffers, 30)["f"]
    x, room = np.arange(4, dtype=np.float32), np.zeros((31, 4), np.float32)
    f(x, *room[:30])
    assert (room[:30] == x).all()
    code, text = refused(f, x, *room[:29], np.zeros(4))
    assert (code, text.split(",")[0]) == ("BW703", "result 30 `y29` of f: expected float32")
    code, text = refused(f, x, *room[:29], room[3])
    assert (code, text) == (
        "BW706",
        "result 30 `y29` of f: it is written and overlaps result 4 `y3`",
    )
