"""Compiled models stop at bad positions and, when asked to, at what a sanitizer looks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import blockwright as bw


class Lookup(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.table = torch.nn.Embedding(50, 24)
        self.norm = torch.nn.LayerNorm(24)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.norm(self.table(ids)).sum(dim=1)


IDS = torch.tensor([[3, 0, 49], [7, 7, 12]])
SHAPES = {"ids": {0: torch.export.Dim("texts", max=8), 1: torch.export.Dim("tokens", max=16)}}


def test_tokens_outside_the_vocabulary_fail_the_call(
    compile_torch: Any, compare_with_torch: Any
) -> None:
    model = Lookup().eval()
    exe = compile_torch(model, (IDS,), SHAPES)
    compare_with_torch(exe, model, (IDS,))
    for bad in (50, -1, 2**40):
        ids = IDS.clone()
        ids[1, 2] = bad
        with pytest.raises(bw.ArgumentError, match="must be at least 0 and less than 50") as caught:
            exe(ids)
        assert caught.value.code == "BW708"
    compare_with_torch(exe, model, (IDS,))


def test_index_select_counts_no_position_from_the_end(agrees: Any) -> None:
    x, last = torch.randn(2, 5), torch.tensor([4, 0])
    exe = agrees(lambda x, at: x.index_select(1, at), x, last)
    for bad in (-1, 5):
        with pytest.raises(bw.ArgumentError, match="must be at least 0 and less than 5") as caught:
            exe(x, torch.tensor([0, bad]))
        assert caught.value.code == "BW708"


def test_sanitized_models_answer_alike_and_stop_at_nan(compare_with_torch: Any) -> None:
    model = Lookup().eval()
    every = {"sanitize": ("bounds", "nan", "uninit")}
    exe = bw.compile(model, (IDS,), dynamic_shapes=SHAPES, options=every)
    compare_with_torch(exe, model, (IDS,))
    with torch.no_grad():
        model.table.weight[7, 5] = torch.nan
    exe = bw.compile(model, (IDS,), dynamic_shapes=SHAPES, options=every)
    with pytest.raises(bw.BlockwrightError, match="NaN written") as caught:
        exe(IDS)
    assert caught.value.code == "BW714"
    with pytest.raises(bw.BlockwrightError, match="NaN written"):
        exe.profile(IDS)  # times the code with its checks


def test_every_stage_can_be_dumped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_DUMP_DIR", str(tmp_path))
    exe = bw.compile(Lookup().eval(), (IDS,), dynamic_shapes=SHAPES)
    files = sorted(path.name for path in tmp_path.glob("*.py"))
    assert files[0] == "00-import.py"
    assert [name.partition("-")[2] for name in files][-1] == "lower_host.py"
    kernels = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert {"main", *exe.context.traces} <= kernels
