"""Memory of compiled code goes back to the system when nobody can call it any more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import blockwright as bw
from blockwright.runtime import reclaim as idle
from tests.runtime.memory import resident

pytestmark = pytest.mark.usefixtures("usual_collections")

MEBI = 1 << 20
ROWS, COLUMNS = 16, MEBI  # 64 MiB of single precision


class Sum(nn.Module):
    """64 MiB of weights, and a result of that size."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.full((ROWS, COLUMNS), value))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight: Any = self.weight
        return torch.relu(x + weight)


def compiled(value: float) -> Any:
    return bw.compile(Sum(value).eval(), [torch.ones(ROWS, COLUMNS)])


def test_memory_of_models_that_are_dropped_goes_back() -> None:
    x = torch.ones(ROWS, COLUMNS)
    most = list[int]()
    for value in range(4):
        exe = compiled(value)
        exe(x)
        assert exe(x)[-1, 0] == 1.0 + value
        used = resident()
        del exe
        most.append(used)
        # The weights, and the result that waited for the next call.
        assert used - resident() > 100 * MEBI
    assert most[-1] - most[0] < 64 * MEBI


def test_results_outlive_their_model_and_go_back_too() -> None:
    x = torch.ones(ROWS, COLUMNS)
    exe = compiled(2.0)
    result = exe(x)
    del exe
    assert bool((result[-1] == 3.0).all())
    before = resident()
    del result
    assert before - resident() > 60 * MEBI


def test_a_function_that_somebody_holds_keeps_its_weights() -> None:
    """The FFI's own function, in Python or in another module, which this package does not see."""
    x = torch.ones(ROWS, COLUMNS)
    exe = compiled(4.0)
    raw = exe.library.entry("main")
    del exe
    idle.release_unused()
    result = np.from_dlpack(raw(x))
    assert (result[-1] == 5.0).all()
    before = resident()
    del raw
    idle.release_unused()  # what each later compilation does
    assert before - resident() > 60 * MEBI


def test_a_file_that_was_loaded_twice_is_one_library(tmp_path: Path) -> None:
    x = torch.ones(ROWS, COLUMNS)
    compiled(1.0).save(tmp_path / "sum.bwx")
    first, second = bw.load(tmp_path / "sum.bwx"), bw.load(tmp_path / "sum.bwx")
    address = second(x).data_ptr()
    del first
    # Memory still waits for the second one's next result.
    assert second(x).data_ptr() == address
    assert second(x)[-1, 0] == 2.0
    used = resident()
    del second
    assert used - resident() > 60 * MEBI


def test_models_go_on_many_threads() -> None:
    x = torch.ones(8, 512)
    models = list[tuple[float, Any]]()
    for value in range(8):
        model = nn.Linear(512, 64)
        nn.init.constant_(model.weight, float(value))
        nn.init.zeros_(model.bias)
        models.append((512.0 * value, bw.compile(model.eval(), [x])))
    failed = list[float]()

    def work() -> None:
        while models:
            try:
                wanted, exe = models.pop()
            except IndexError:
                return
            if bool((exe(x) != wanted).any()):
                failed.append(wanted)
            del exe

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
