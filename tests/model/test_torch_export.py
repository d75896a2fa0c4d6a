"""How modules are exported: their modes, and attributes that the export makes constant."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import blockwright as bw


class Counted(nn.Module):
    """Has dropout, a buffer that counts calls, and attributes that do."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.step, self.total, self.last = 0, torch.zeros(3), torch.zeros(3)
        self.assigns = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.assigns:
            self.step += 1
            self.total = self.total + x
            self.last = self.total * 2  # read by the caller only
        return self.drop(x) * self.calls + self.step + self.total


@pytest.mark.parametrize("inner", [False, True])
def test_the_module_of_an_exported_program_is_taken_as_it_is(inner: bool) -> None:
    rows = ({0: torch.export.Dim("n", min=2, max=9)},)
    program = torch.export.export(Counted().eval(), (torch.ones(4, 3),), dynamic_shapes=rows)
    module = program.module()
    model = nn.Sequential(module, nn.Identity()) if inner else module
    exe = bw.compile(model, (torch.ones(4, 3),), dynamic_shapes=rows)
    for count in (1, 2, 3):
        x = torch.randn(count + 1, 3)
        torch.testing.assert_close(exe(x), x * count)
    assert model.training


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # PyTorch's own, less exact
def test_attributes_that_the_export_freezes_are_named() -> None:
    model = Counted().eval()
    model.assigns = True
    with pytest.warns(bw.BlockwrightWarning, match=r"BW515.*forward: step, total\. ") as found:
        exe = bw.compile(model, (torch.ones(3),))
    warned = [w.message for w in found if isinstance(w.message, bw.BlockwrightWarning)]
    assert len(warned) == 1
    assert "register_buffer" in (warned[0].help or "")
    assert model.step == 0
    assert not model.total.any()
    for count in (1, 2):
        torch.testing.assert_close(exe(torch.ones(3)), torch.ones(3) * (count + 2))


class KeepsSize(torch.nn.Module):
    """Stores the sizes of its input for a method that it calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.columns = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows, self.columns = x.shape
        return self.turned(x)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(self.columns, self.rows)


def test_numbers_stored_before_they_are_read_cause_no_warning() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exe = bw.compile(KeepsSize(), (x,))
    torch.testing.assert_close(exe(x), x.reshape(3, 2))
