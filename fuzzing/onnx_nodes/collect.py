"""The node tests of the ONNX package."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


def collect() -> list[Any]:
    """All node tests, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = importlib.import_module("onnx.backend.test.case.node")
        return sorted(cases.collect_testcases(), key=lambda test: test.name)
