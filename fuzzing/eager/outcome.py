"""Run torch modules and classify the outcome: results, a coded refusal, or an internal error."""

from __future__ import annotations

import functools
import traceback
import warnings
from typing import Any

import msgspec
import torch
from torch.export import exported_program

import blockwright as bw
from blockwright.support import (
    ArgumentError,
    BlockwrightError,
    GraphError,
    ImporterError,
    OptionError,
)
from fuzzing.schedules.native import load_compiler

_REFUSALS = (ImporterError, GraphError, OptionError, ArgumentError)
"""Errors that reject the input; other Blockwright errors are defects of the compiler."""


class Outcome(msgspec.Struct, frozen=True):
    """What a program did, compared with its reference.

    Attributes:
        what: "passed", "refused", "wrong", "internal"; also "export" (PyTorch cannot export the
            module) and "eager" (PyTorch rejects it).
        code: code of the refusal, kind of the difference, or name of the internal error.
    """

    what: str
    code: str = ""
    words: str = ""

    @property
    def symptom(self) -> str:
        """Label shared by findings of one kind."""
        return f"{self.what} {self.code}".strip()

    @property
    def is_finding(self) -> bool:
        return self.what in ("wrong", "internal")


def problem_of(error: BaseException) -> Outcome:
    """Classify an error of import, compilation or call as a refusal or an internal error."""
    if isinstance(error, _REFUSALS):
        code = str(error.code)
        if code not in _BROKEN:
            return Outcome("refused", code, _line(error.message))
    code = str(error.code) if isinstance(error, BlockwrightError) else ""
    name = f"{type(error).__name__} {code}".strip()
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/blockwright/" in f.filename] or frames
    place = f"{own[-1].filename.rpartition('blockwright/')[2]}:{own[-1].lineno}"
    return Outcome("internal", name, _line(f"{error} ({place})"))


_BROKEN = {"BW210", "BW211", "BW212", "BW216"}
"""Codes for an invalid program, created by the compiler."""


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]


def export(module: Any, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> Any:
    """The exported program, or an `Outcome` if PyTorch cannot export the module."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                module.eval(), inputs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # noqa: BLE001  PyTorch may raise anything
        return Outcome("export", type(error).__name__, _line(error))


def compiled(program: Any) -> Any:
    """The executable of an exported program, or an `Outcome`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bw.compile(program, options={"fallback": "error"})
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)


def called(executable: Any, inputs: tuple[Any, ...]) -> Any:
    """The results of a call, or an `Outcome`."""
    try:
        return executable(*inputs)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)


def load() -> None:
    """Load everything that export and compilation need, so that forked processes inherit it."""
    torch.set_num_threads(1)
    _list_composites_once()
    program = export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    bw.compile(program)
    load_compiler()


def _list_composites_once() -> None:
    """Cache PyTorch's list of composite operators.

    Every decomposition rebuilds it in a tenth of a second, in case operators were registered; here
    none are.
    """
    module: Any = exported_program
    module._collect_all_valid_cia_ops = functools.cache(module._collect_all_valid_cia_ops)
