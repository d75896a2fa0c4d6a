"""Compile an architecture by each route and compare results with the model's own."""

from __future__ import annotations

import io
import resource
import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import torch

import blockwright as bw
from fuzzing.eager.compare import kind_difference, leaves
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.models.architecture import Architecture, Inputs

ROUTES = ("static", "dynamic", "onnx")
_ALLOWED = 2e-4
"""Largest error relative to the largest element of a result."""


class Trial(msgspec.Struct, frozen=True):
    """What became of an architecture by one route.

    Attributes:
        error: largest error relative to the largest element of a result.
        seconds: processor time of the whole route.
    """

    architecture: str
    route: str
    outcome: Outcome
    error: float = 0.0
    seconds: float = 0.0


def attempt(architecture: Architecture, route: str) -> Trial:
    """Build, compile and compare an architecture by one route."""
    torch.default_generator.manual_seed(0)
    error = 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model = architecture.build().eval()
            _prepare(model)
            given = [architecture.inputs(s) for s in (architecture.small, architecture.large)]
            expected = [_eager(model, inputs) for inputs in given]
        except Exception as problem:  # noqa: BLE001  a configuration that PyTorch rejects
            return _trial(
                architecture, route, Outcome("eager", type(problem).__name__, str(problem))
            )
        if route == "static":
            given, expected = given[:1], expected[:1]
        compiled = _ROUTES[route](model, given)
        if isinstance(compiled, Outcome):
            return _trial(architecture, route, compiled)
        for inputs, wanted in zip(given, expected, strict=True):
            try:
                found = compiled(inputs)
            except Exception as problem:  # noqa: BLE001  an internal error is a finding
                outcome = problem_of(problem)
                if outcome.code in _SIZES and not _exported_takes(route, model, given, inputs):
                    outcome = Outcome("export", outcome.code, outcome.words)
                return _trial(architecture, route, outcome)
            text = kind_difference(found, wanted)
            if text:
                return _trial(architecture, route, Outcome("wrong", "kind", text))
            error = max(error, *(map(_error, leaves(found), leaves(wanted))), 0.0)
    if not error <= _ALLOWED:
        return _trial(architecture, route, Outcome("wrong", "value", f"error {error:.1e}"), error)
    return _trial(architecture, route, Outcome("passed"), error)


def _prepare(model: torch.nn.Module) -> None:
    """Give convolutions and their norms weights with which values do not vanish on the way."""
    norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        if parameter.ndim > 3:
            torch.nn.init.kaiming_normal_(parameter)
    for part in model.modules():
        if isinstance(part, norms) and part.affine:
            torch.nn.init.uniform_(part.weight, 0.5, 1.5)
            if part.running_var is not None:
                torch.nn.init.uniform_(part.running_var, 0.5, 1.5)


_SIZES = {"BW702", "BW703", "BW704", "BW705", "BW708", "BW719"}
"""Codes of calls with sizes that the program does not take."""


def _trial(architecture: Architecture, route: str, outcome: Outcome, error: float = 0.0) -> Trial:
    spent = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = spent.ru_utime + spent.ru_stime + others.ru_utime + others.ru_stime
    outcome = Outcome(outcome.what, outcome.code, " ".join(outcome.words.split())[:400])
    return Trial(architecture.name, route, outcome, error, seconds)


def _eager(model: torch.nn.Module, inputs: Inputs) -> Any:
    with torch.no_grad():
        return model(**inputs)


def _error(found: Any, wanted: Any) -> float:
    """Error relative to the largest finite element; infinite if elements that are not finite, or
    integers, differ."""
    if not isinstance(wanted, torch.Tensor):
        return 0.0 if found == wanted else float("inf")
    if not wanted.numel():
        return 0.0
    if not wanted.is_floating_point():
        return 0.0 if torch.equal(found, wanted) else float("inf")
    a, b = found.double(), wanted.double()
    finite = b.isfinite()
    if not torch.equal(a.nan_to_num(7, 8, 9)[~finite], b.nan_to_num(7, 8, 9)[~finite]):
        return float("inf")
    if not bool(finite.any()):
        return 0.0
    scale = max(float(b[finite].abs().max()), 1e-6)
    return float((a - b)[finite].abs().max()) / scale


def _static(model: torch.nn.Module, given: list[Inputs]) -> Any:
    """Compiled with example arguments by name, as the model is called."""
    try:
        exe = bw.compile(model, example_kwargs=given[0], options={"fallback": "error"})
    except Exception as problem:  # noqa: BLE001  an internal error is a finding
        return _compiler_problem(problem)
    return _by_name(exe)


def _by_name(exe: Any) -> Callable[[Inputs], Any]:
    def call(inputs: Inputs) -> Any:
        return exe(**inputs)

    return call


def _compiler_problem(problem: Exception) -> Outcome:
    outcome = problem_of(problem)
    return Outcome("export", outcome.code, outcome.words) if outcome.code == "BW509" else outcome


def dynamic_shapes(given: list[Inputs]) -> dict[str, dict[int, Any]]:
    """Axes that differ between the inputs."""
    return {
        name: {
            axis: torch.export.Dim.AUTO
            for axis, (a, b) in enumerate(zip(tensor.shape, given[1][name].shape, strict=True))
            if a != b
        }
        for name, tensor in given[0].items()
    }


def _program(model: torch.nn.Module, given: list[Inputs]) -> Any:
    with torch.no_grad():
        return torch.export.export(
            model, (), dict(given[0]), dynamic_shapes=dynamic_shapes(given), strict=False
        )


def _dynamic(model: torch.nn.Module, given: list[Inputs]) -> Any:
    try:
        program = _program(model, given)
    except Exception as problem:  # noqa: BLE001  PyTorch may raise anything
        return Outcome("export", type(problem).__name__, str(problem))
    try:
        exe = bw.compile(program, options={"fallback": "error"})
    except Exception as problem:  # noqa: BLE001  an internal error is a finding
        return _compiler_problem(problem)
    return _by_name(exe)


def _exported_takes(route: str, model: Any, given: list[Inputs], inputs: Inputs) -> bool:
    """Whether PyTorch's own exported program accepts inputs that ours rejects."""
    if route != "dynamic":
        return True
    try:
        _program(model, given).module()(**inputs)
    except Exception:  # noqa: BLE001  PyTorch may raise anything
        return False
    return True


def _onnx(model: torch.nn.Module, given: list[Inputs]) -> Any:
    shapes = {
        name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC)
        for name, axes in dynamic_shapes(given).items()
    }
    file = io.BytesIO()
    try:
        exporter: Any = torch.onnx
        exporter.export(
            model, (), file, kwargs=dict(given[0]), dynamo=True, dynamic_shapes=shapes,
            verbose=False, external_data=False,
        )  # fmt: skip
    except Exception as problem:  # noqa: BLE001  PyTorch may raise anything
        cause = problem.__cause__ or problem  # which the exporter's advice would hide
        return Outcome("export", type(cause).__name__, str(cause))
    try:
        exe = bw.compile(file.getvalue(), options={"fallback": "error"})
    except Exception as problem:  # noqa: BLE001  an internal error is a finding
        return problem_of(problem)

    def call(inputs: Inputs) -> list[torch.Tensor]:
        results = exe(**{name: tensor.numpy() for name, tensor in inputs.items()})
        return [torch.as_tensor(result) for result in results]

    return call


_ROUTES: dict[str, Callable[[torch.nn.Module, list[Inputs]], Any]] = {
    "static": _static,
    "dynamic": _dynamic,
    "onnx": _onnx,
}
