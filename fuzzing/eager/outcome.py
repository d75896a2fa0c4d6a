"""What becomes of a torch module: compiled and run, refused with a code, or an internal error."""

from __future__ import annotations

import functools
import resource
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
"""Errors that say what a user may not do; others of the family are faults of the compiler."""


class NoResult(msgspec.Struct, frozen=True):
    """Why there are no results.

    Attributes:
        kind: "export" (PyTorch cannot export it), "refused" or "internal".
        code: of the refusal, or what the internal error is called.
    """

    kind: str
    code: str
    words: str


def problem_of(error: BaseException) -> NoResult:
    """An error of import, compilation or call as a refusal or an internal error."""
    if isinstance(error, _REFUSALS):
        code = str(error.code)
        if code not in _BROKEN:
            return NoResult("refused", code, _line(error.message))
    code = str(error.code) if isinstance(error, BlockwrightError) else ""
    name = f"{type(error).__name__} {code}".strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rpartition('blockwright/')[2]}:{frames[-1].lineno}"
    return NoResult("internal", name, _line(f"{error} ({place})"))


_BROKEN = {"BW210", "BW211", "BW212", "BW216"}
"""Codes that say of a program made by the compiler that it is broken."""


def _line(text: object) -> str:
    return " ".join(str(text).split())[:300]


def export(module: Any, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> Any:
    """The exported program, or a `NoResult` if PyTorch cannot export the module."""
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(
                module.eval(), inputs, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:  # noqa: BLE001  whatever PyTorch raises
        return NoResult("export", type(error).__name__, _line(error))


def compiled(program: Any) -> Any:
    """The executable of an exported program, or a `NoResult`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bw.compile(program)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)


def called(executable: Any, inputs: tuple[Any, ...]) -> Any:
    """The results of a call, or a `NoResult`."""
    try:
        return executable(*inputs)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)


def load() -> None:
    """Load what exporting and compiling need, so that forked processes have it already."""
    torch.set_num_threads(1)
    _list_composites_once()
    program = export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    bw.compile(program)
    load_compiler()


def _list_composites_once() -> None:
    """Let PyTorch list its composite operators once, not in each decomposition: a tenth of a
    second. It does so because operators may be registered at any time; here none are."""
    module: Any = exported_program
    module._collect_all_valid_cia_ops = functools.cache(module._collect_all_valid_cia_ops)


def limit_memory(gibibytes: int = 6) -> None:
    """Let this process have so much more address space, and no more."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + gibibytes * 2**30, hard))
