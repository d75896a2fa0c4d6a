"""PyTorch modules of the cases, written plainly; weights are random and always the same."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from benchmarks.cases import Case


def build(case: Case) -> torch.nn.Module:
    """The module of a case, in evaluation mode."""
    import torch

    file, function = case.build.split(".")
    torch.manual_seed(0)
    make = getattr(importlib.import_module(f"benchmarks.modules.{file}"), function)
    return make(**case.settings).eval().requires_grad_(False)
