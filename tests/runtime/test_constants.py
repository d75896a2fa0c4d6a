"""Memory for constants: computed there, read there, and written by nobody afterwards."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import blockwright as bw
from blockwright.runtime.constants import Constants, empty, owned, reserved, seal
from tests.runtime.memory import resident

pytestmark = pytest.mark.usefixtures("usual_collections")

MEBI = 1 << 20


def mode(address: int) -> str:
    """What the system allows at an address, such as "r--p"."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, allowed = line.split()[:2]
        low, high = (int(end, 16) for end in span.split("-"))
        if low <= address < high:
            return allowed
    raise AssertionError("nothing is there")


@pytest.mark.parametrize("shape", [(), (0, 7), (3, 5), (1000, 1001), (3 * MEBI,)])
@pytest.mark.parametrize("dtype", ["f4", "i1", "f8"])
def test_any_array_can_be_computed_and_sealed(shape: tuple[int, ...], dtype: str) -> None:
    array = empty(shape, dtype)
    array[...] = 3
    assert array.shape == shape
    assert array.dtype == dtype
    seal(array)
    assert (array == 3).all()
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 4


def test_large_sealed_arrays_are_lent_and_others_copied() -> None:
    large, small, other = empty((MEBI,), "f4"), empty((3,), "f4"), np.ones(MEBI, "f4")
    large[:], small[:] = 1, 2
    seal(large)
    seal(small)
    kept = Constants({"large": large, "small": small, "other": other, "none": np.empty(0, "f4")})
    assert kept.addresses["large"] == large.ctypes.data
    for name in ("small", "other"):
        assert kept.addresses[name] not in (small.ctypes.data, other.ctypes.data)
    for address in (kept.addresses[name] for name in ("large", "small", "other")):
        assert address % 64 == 0
        assert mode(address) == "r--p"
    assert set(kept.addresses) == {"large", "small", "other", "none"}


def test_an_array_that_may_still_change_is_copied() -> None:
    array = empty((MEBI,), "f4")
    assert Constants({"a": array}).addresses["a"] != array.ctypes.data
    seal(array)
    assert Constants({"a": array[1:]}).addresses["a"] != array.ctypes.data + 4  # not at a line


def test_packed_weights_are_in_memory_once() -> None:
    """What a product was compiled with, and what a change of the module's weights leaves alone."""
    model = nn.Linear(1024, 1024).eval()
    x = torch.randn(4, 1024)
    exe = bw.compile(model, [x])
    wanted = model(x)
    found = exe.library.compiled.constants
    symbol = max(found, key=lambda name: found[name].nbytes)
    packed = found[symbol]
    assert packed.nbytes >= 4 * MEBI
    assert Constants(found).addresses[symbol] == packed.ctypes.data  # no copy is made of it
    assert mode(packed.ctypes.data) == "r--p"
    with torch.no_grad():
        model.weight.zero_()
    torch.testing.assert_close(exe(x), wanted, rtol=1e-4, atol=1e-5)


def test_models_with_equal_weights_share_their_memory() -> None:
    """While one of them exists; compiled apart, in one process."""
    model, x = nn.Linear(1024, 1024).eval(), torch.randn(4, 1024)
    one, other = (bw.compile(copy.deepcopy(model), [x]) for _ in range(2))
    address = largest(one).ctypes.data
    assert largest(other).ctypes.data == address
    assert largest(bw.compile(nn.Linear(1024, 1024).eval(), [x])).ctypes.data != address
    wanted = other(x)
    del one
    gc.collect()
    assert torch.equal(other(x), wanted)


def largest(exe: bw.CompiledModel) -> np.ndarray[Any, Any]:
    return max(exe.library.compiled.constants.values(), key=lambda array: array.nbytes)


def test_known_arrays_are_found_by_all_their_bytes() -> None:
    array = np.arange(MEBI, dtype="f4")
    kept = owned({"a": array})["a"]
    assert kept.ctypes.data != array.ctypes.data
    again = owned({"a": array.copy(), "c": array.reshape(2, -1).view("i4")})
    assert all(each.ctypes.data == kept.ctypes.data for each in again.values())
    assert again["c"].dtype == np.int32
    assert again["c"].shape == (2, MEBI // 2)
    array[MEBI // 2 + 1] += 1
    changed = owned({"a": array})["a"]
    assert changed[MEBI // 2 + 1] == MEBI // 2 + 2
    assert again["a"][MEBI // 2 + 1] == MEBI // 2 + 1
    assert not changed.flags.writeable


def test_what_is_saved_is_what_was_compiled(tmp_path: Path) -> None:
    """Weights that keep their layout too, such as a table: the model may change afterwards."""
    model, rows = nn.Embedding(1000, 8), torch.tensor([1, 2, 3])
    exe = bw.compile(model, [rows])
    wanted = model(rows).detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    exe.save(tmp_path / "table.bwx")
    for each in (exe, bw.load(tmp_path / "table.bwx")):
        assert torch.equal(each(rows), wanted)


def test_an_artefact_has_them_too(tmp_path: Path) -> None:
    """Also when it is saved after the model was called, and read by a process of its own."""
    model, x = nn.Linear(1024, 512).eval(), torch.ones(2, 1024)
    exe = bw.compile(model, [x])
    result = exe(x)
    exe.save(tmp_path / "linear.bwx")
    del exe
    script = "import sys, torch, blockwright as bw\n"
    script += "print(bw.load(sys.argv[1])(torch.ones(2, 1024)).sum().item())"
    command = [sys.executable, "-c", script, str(tmp_path / "linear.bwx")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert float(told) == pytest.approx(result.sum().item(), rel=1e-6)


def test_a_reserve_is_used_and_what_is_left_of_it_goes_back() -> None:
    before = resident()
    with reserved(256 * MEBI):
        first, second = empty((4 * MEBI,), "f4"), empty((8 * MEBI,), "f4")
        first[:], second[:] = 1, 2
        seal(first)
        kept = Constants({"first": first, "other": np.full(2 * MEBI, 3, "f4")})
    assert kept.addresses["first"] == first.ctypes.data
    assert mode(first.ctypes.data) == mode(kept.addresses["other"]) == "r--p"
    assert resident() - before < 96 * MEBI  # 16 + 32 + 8, and 8 of the source
    del second
    assert resident() - before < 56 * MEBI
    assert (first == 1).all()


def test_more_than_was_reserved_can_be_had() -> None:
    with reserved(64 * MEBI):
        arrays = [empty((8 * MEBI,), "f4") for _ in range(3)]
        for number, array in enumerate(arrays):
            array[:] = number
            seal(array)
    assert [array[-1] for array in arrays] == [0, 1, 2]
    assert {mode(array.ctypes.data) for array in arrays} == {"r--p"}


def test_a_reserve_that_cannot_be_had_is_done_without() -> None:
    with reserved(1 << 60):
        array = empty((MEBI,), "f4")
        array[:] = 1
        seal(array)
    assert array[-1] == 1


def test_a_reserve_that_an_error_ends_goes_back() -> None:
    before = resident()
    with pytest.raises(RuntimeError), reserved(512 * MEBI):
        raise RuntimeError
    assert resident() - before < 32 * MEBI
