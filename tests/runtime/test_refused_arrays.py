"""Arrays that calls refuse: without memory, with more than memory, with elements that share it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

import blockwright as bw
from blockwright import ir
from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.results import has_shared_elements
from blockwright.support import ArgumentError, BlockwrightError

PROGRAM = """
@T.prim_func
def double(A: T.Buffer((2, 3), "float32"), B: T.Buffer((2, 3), "float32")):
    for i, j in T.grid(2, 3):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
"""


@pytest.fixture(scope="module")
def program() -> ir.PrimFunc:
    return bw.from_source(PROGRAM)


@pytest.fixture(scope="module")
def double(program: ir.PrimFunc) -> NativeFunction:
    function = bw.build(program)["double"]
    x, y = torch.ones(2, 3), torch.zeros(2, 3)
    function(x, y)  # the quick path knows torch's classes from here on
    function(x, y)
    assert (y == 2).all()
    return function


def freed(offset: int = 0) -> torch.Tensor:
    x = torch.randn(offset + 6)[offset:].view(2, 3)
    x.untyped_storage().resize_(0)
    return x


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.zeros(2, 3)


def short() -> torch.Tensor:
    """Not contiguous: what is, calls hand over without a look at how large the storage is."""
    x = torch.randn(3, 2).t()
    x.untyped_storage().resize_(20)
    return x


WITHOUT_MEMORY: dict[str, Callable[[], Any]] = {
    "fake": fake,
    "freed": freed,
    "freed, with an offset": lambda: freed(100_000),
    "short": short,
    "parameter": lambda: torch.nn.Parameter(freed()),
    "lazy": torch.nn.parameter.UninitializedParameter,
    "two tensors": lambda: TwoTensor(torch.ones(2, 3), torch.ones(2, 3)),
    "masked": lambda: torch.masked.masked_tensor(torch.ones(2, 3), torch.ones(2, 3) > 0),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(3)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8),
    "masked array": lambda: np.ma.masked_array(np.ones((2, 3), "float32"), np.eye(2, 3) > 0),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WITHOUT_MEMORY)
def test_arrays_without_memory_of_their_own(name: str, double: NativeFunction) -> None:
    array = WITHOUT_MEMORY[name]()
    for args in ((array, torch.zeros(2, 3)), (torch.zeros(2, 3), array)):
        with pytest.raises(ArgumentError) as caught:
            double(*args)
        assert caught.value.code == "BW702"
        assert caught.value.help


@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_inside_of_transforms(transform: str, double: NativeFunction) -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        double(x, torch.zeros(2, 3))
        return x.sum()

    x = torch.ones(4, 2, 3) if transform == "vmap" else torch.ones(2, 3)
    function = getattr(torch.func, transform)

    def call() -> None:
        function(body, (x,), (x,)) if transform == "jvp" else function(body)(x)

    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.code == "BW702"


@pytest.mark.filterwarnings("ignore")
def test_inside_of_fake_mode(double: NativeFunction) -> None:
    x = torch.ones(2, 3)
    with FakeTensorMode(allow_non_fake_inputs=True), pytest.raises(ArgumentError) as caught:
        double(x, x.clone())
    assert caught.value.code == "BW702"


def test_empty_tensors_need_no_memory() -> None:
    """(n, 3) with n = 0, of which PyTorch and the compiled code hold no address."""
    text = """
@T.prim_func
def copy(a: T.handle, b: T.handle):
    n = T.int64()
    A = T.match_buffer(a, (n, 3), "float32")
    B = T.match_buffer(b, (n, 3), "float32")
    for i, j in T.grid(n, 3):
        B[i, j] = A[i, j]
"""
    bw.build(bw.from_source(text))["copy"](torch.zeros(0, 3), torch.zeros(0, 3))


@pytest.mark.parametrize("name", ["fake", "freed", "meta"])
def test_weights_without_memory(name: str) -> None:
    model = torch.nn.Linear(3, 2)
    if name == "meta":
        program = torch.export.export(model, (torch.ones(2, 3),))
        state = {k: v.to("meta") for k, v in program.state_dict.items()}
        program._state_dict = state
        with pytest.raises(ArgumentError, match="'weight' is on device 'meta'"):
            bw.compile(program)
        return
    model.weight = torch.nn.Parameter({"fake": fake, "freed": freed}[name]())
    with pytest.raises(BlockwrightError) as caught:
        bw.compile(model, (torch.ones(2, 3),))
    assert caught.value.code in ("BW702", "BW509")


def test_example_without_memory() -> None:
    with pytest.raises(
        ArgumentError, match="example input 1 is a tensor whose storage holds 0 bytes"
    ):
        bw.compile(torch.nn.Linear(3, 2), (freed(),))


def test_masked_arrays_and_the_interpreter(program: ir.PrimFunc) -> None:
    masked = np.ma.masked_array(np.ones((2, 3), "float32"), np.eye(2, 3) > 0)
    with pytest.raises(BlockwrightError) as caught:
        bw.interpret(program, masked, np.zeros((2, 3), "float32"))
    assert caught.value.code == "BW702"


def strided(shape: tuple[int, ...], steps: tuple[int, ...]) -> np.ndarray:
    room = np.zeros(64, "float32")
    return np.lib.stride_tricks.as_strided(room[30:], shape, tuple(4 * s for s in steps))


@pytest.mark.parametrize("steps", [(0, 1), (3, 0), (1, 1), (2, 1), (0, 0), (-1, 1)])
def test_written_elements_that_share_memory(
    steps: tuple[int, int], program: ir.PrimFunc, double: NativeFunction
) -> None:
    x = np.ones((2, 3), "float32")
    array = strided((2, 3), steps)
    with pytest.raises(ArgumentError) as caught:
        double(x, array)
    assert caught.value.code == "BW706"
    with pytest.raises(BlockwrightError) as caught:
        bw.interpret(program, x, array)
    assert caught.value.code == "BW706"
    out = np.zeros((2, 3), "float32")
    double(array, out)  # what is only read may share
    assert (out == 2 * array).all()
    if min(steps) >= 0:
        with pytest.raises(ArgumentError) as caught:
            double(x, torch.as_strided(torch.zeros(9), (2, 3), steps))
        assert caught.value.code == "BW706"


def test_shared_elements_by_looking_at_each() -> None:
    for shape in itertools.product((1, 2, 3), repeat=2):
        for steps in itertools.product(range(-4, 5), repeat=2):
            places = [
                sum(a * b for a, b in zip(at, steps, strict=True)) for at in np.ndindex(shape)
            ]
            assert has_shared_elements(strided(shape, steps)) == (len(set(places)) < len(places))


STRIDED = bw.from_source("""
@T.prim_func
def main(a: T.handle, c: T.handle, n: T.int64):
    A = T.match_buffer(a, (n, 4), "float32", strides=("row", 1))
    C = T.match_buffer(c, (n, 4), "float32", strides=(8, 1))
    for i, j in T.grid(n, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + T.float32(1)
""")


def test_strides_that_lead_to_no_element_may_be_any() -> None:
    """NumPy gives the strides of empty arrays as 0."""
    call = bw.build(STRIDED)
    call(np.zeros((0, 4), "float32"), np.zeros((0, 4), "float32"), 0)
    one = np.zeros((1, 4), "float32")
    call(np.ones((1, 4), "float32"), one, 1)
    assert one.tolist() == [[2.0] * 4]
    with pytest.raises(ArgumentError, match=r"BW706.*expected stride 8"):
        call(np.ones((2, 4), "float32"), np.zeros((2, 4), "float32"), 2)
