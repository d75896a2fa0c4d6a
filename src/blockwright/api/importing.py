"""`bw.import_model`: convert a model of any kind to a graph-level module."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from blockwright import ir
from blockwright.api.module_attributes import check_module_attributes
from blockwright.api.several import joined
from blockwright.api.validate import unknown_bounds
from blockwright.build.steps import warm_up
from blockwright.frontend.fallback import Fallback
from blockwright.frontend.onnx import from_onnx, is_onnx
from blockwright.ir.fields import field_problems
from blockwright.strategies import apply_strategies
from blockwright.support import OptionError, ValidationError

_TRACING = threading.RLock()
"""Held while PyTorch traces: export and decompositions are not thread-safe. Reentrant, because a
traced module may compile another one."""
_LARGE = 50  # torch submodules above which the worker processes are started early
KINDS = "pass a torch module, an exported program, an ONNX model or an IR module"


def import_model(
    model: Any,
    example_inputs: Sequence[Any] | Mapping[str, Sequence[Any]] | None = None,
    dynamic_shapes: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    fallback: Fallback = "framework",
) -> ir.IRModule:
    """Convert a model of any supported kind to a graph-level module.

    For a dict of models, `example_inputs`, `example_kwargs` and `dynamic_shapes` are dicts with the
    same keys. `fallback` is as in the options of `compile`.
    """
    examples = Examples(example_inputs, example_kwargs, dynamic_shapes)
    return _imported(model, examples, fallback)


class Examples(msgspec.Struct, frozen=True):
    """What a PyTorch module is exported with."""

    inputs: Any = None
    kwargs: Any = None
    dynamic_shapes: Any = None

    def of(self, name: str) -> Examples:
        """The part for one of several models, where each argument is a dict of their names."""
        parts: list[Any] = []
        for given in (self.inputs, self.kwargs, self.dynamic_shapes):
            if given is not None and not isinstance(given, Mapping):
                raise OptionError(
                    "with several models, example_inputs, example_kwargs and dynamic_shapes are "
                    "dicts of the same names",
                    code="BW908",
                    help=f'pass example_inputs={{"{name}": (x,), …}}',
                )
            parts.append(None if given is None else cast("Mapping[str, Any]", given).get(name))
        return Examples(*parts)


def _imported(model: Any, examples: Examples, fallback: Fallback) -> ir.IRModule:
    if isinstance(model, Mapping):
        named = _checked_names(cast("Mapping[Any, Any]", model))
        given = {n: examples.of(n) for n in named}
        with _TRACING:
            programs = {n: _exported(each, given[n]) for n, each in named.items()}
            exported = {
                n: (p, given[n].dynamic_shapes) for n, p in programs.items() if p is not None
            }
            imported = _from_exported(exported, fallback)
        others = {
            n: _imported(each, given[n], fallback) for n, each in named.items() if n not in imported
        }
        return joined({n: imported.get(n) or others[n] for n in named})
    if isinstance(model, (ir.IRModule, ir.GraphFunction)) and (wrong := field_problems(model)):
        raise ValidationError.collect(wrong)
    if isinstance(model, ir.GraphFunction):
        attrs = {**model.attrs, "global_symbol": "main"}
        return _imported(ir.IRModule({"main": model.replace(attrs=attrs)}), examples, fallback)
    if isinstance(model, ir.IRModule):
        problems = [
            p
            for name, f in model.functions.items()
            if isinstance(f, (ir.GraphFunction, ir.PrimFunc)) and not ir.attribute_problems(f.attrs)
            for p in unknown_bounds(f, name)
        ]
        if problems:
            raise ValidationError.collect(problems)
        check_module_attributes(model)
        return model
    if is_onnx(model):
        return from_onnx(model, _fixed_inputs(examples), fallback)
    if isinstance(model, (str, Path)):
        raise OptionError(f"cannot compile the file {Path(model).name!r}", code="BW902", help=KINDS)
    with _TRACING:
        program = _exported(model, examples)
        if program is not None:
            return _from_exported({"main": (program, examples.dynamic_shapes)}, fallback)["main"]
    remedy = "bw.build builds a tensor program" if isinstance(model, ir.PrimFunc) else KINDS
    raise OptionError(f"cannot compile a {type(model).__name__}", code="BW902", help=remedy)


def _exported(model: Any, examples: Examples) -> Any:
    """The exported program of a PyTorch model; None for a model of another kind."""
    kinds = {base.__name__ for base in type(model).__mro__}
    if "ExportedProgram" in kinds:
        return model
    if "Module" in kinds and hasattr(model, "named_parameters"):
        from blockwright.frontend.torch.export import export_module

        if sum(1 for _ in model.modules()) > _LARGE:
            warm_up(apply_strategies)
        return export_module(model, examples.inputs, examples.kwargs, examples.dynamic_shapes)
    return None


def _from_exported(
    programs: Mapping[str, tuple[Any, Any]], fallback: Fallback
) -> dict[str, ir.IRModule]:
    """Import exported programs, given with their dynamic shapes, which share state."""
    if not programs:
        return {}
    from blockwright.frontend.torch import from_exported_programs

    return from_exported_programs(programs, fallback)


def _fixed_inputs(examples: Examples) -> Mapping[str, Any]:
    """The values of inputs that a caller fixes for an ONNX model."""
    if examples.dynamic_shapes is not None:
        raise OptionError(
            "dynamic_shapes does not apply to ONNX models",
            code="BW908",
            help="an ONNX model names its dynamic dimensions itself",
        )
    if examples.kwargs is not None:
        raise OptionError(
            "example_kwargs does not apply to ONNX models",
            code="BW908",
            help="example_inputs fixes values of inputs by name",
        )
    fixed = examples.inputs
    if fixed is not None and not isinstance(fixed, Mapping):
        raise OptionError(
            "an ONNX model needs no example inputs",
            code="BW908",
            help="omit them; a dict fixes values of inputs by name",
        )
    return cast("Mapping[str, Any]", fixed or {})


def _checked_names(models: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Check the names of several models."""
    wrong = [name for name in models if not (isinstance(name, str) and name.isidentifier())]
    if wrong or not models:
        raise OptionError(
            f"{wrong[0]!r} cannot be the name of a function" if wrong else "there is no model",
            code="BW902",
            help='pass {"prefill": model, "decode": other}',
        )
    return models
