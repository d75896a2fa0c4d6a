"""Export of PyTorch modules by `torch.export`, with checked example arguments."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np

from blockwright.frontend.torch.compositions import in_place_kernels
from blockwright.frontend.torch.frozen_attributes import assigned_attributes, warn_of_assignments
from blockwright.frontend.torch.kernels import replaced_composites
from blockwright.frontend.torch.training import warn_of_training
from blockwright.frontend.torch.whole_layers import whole_recurrent_layers
from blockwright.runtime.refused import require_storage
from blockwright.support import ImporterError, OptionError


def export_module(model: Any, example_inputs: Any, example_kwargs: Any, dynamic_shapes: Any) -> Any:
    """Export a module as it is called with the example arguments, in evaluation mode.

    The module's modes and the example arguments stay as they are.

    Raises:
        OptionError: BW908 the example arguments are missing or of a wrong kind.
        ImporterError: BW509 PyTorch cannot export the module.
    """
    import torch
    import torch.utils._pytree as pytree

    args, kwargs = _arguments(example_inputs), _keywords(example_kwargs)
    if args is None and kwargs is None:
        raise OptionError(
            "a torch module needs example_inputs to be exported",
            code="BW908",
            help="bw.compile(model, (x, mask), dynamic_shapes=...)",
        )
    _register_caches()
    given = (args or (), kwargs or {})
    leaves = pytree.tree_leaves(given)
    for value in leaves:
        if isinstance(value, np.ndarray):
            raise OptionError(
                "example_inputs holds a NumPy array; PyTorch exports with tensors",
                code="BW908",
                help="torch.from_numpy(x)",
            )
    for place, value in enumerate(leaves):
        if isinstance(value, torch.Tensor):
            require_storage(value, f"example input {place + 1}")
    # Clone the inputs: the exporter would merge two inputs that are the same tensor.
    distinct, named = pytree.tree_map_only(torch.Tensor, torch.clone, given)
    warn_of_training(model)
    try:
        with (
            _evaluation(model),
            assigned_attributes(model) as assigned,
            torch.no_grad(),
            warnings.catch_warnings(),
            whole_recurrent_layers(),
            replaced_composites(in_place_kernels()),  # PyTorch's may want sizes to be known
        ):
            # PyTorch's own recurrent layers do so whenever they run.
            warnings.filterwarnings("ignore", r"The tensor attributes? .*_flat_weights")
            program = torch.export.export(
                model, distinct, named, dynamic_shapes=dynamic_shapes, strict=False
            )
    except Exception as error:
        raise ImporterError(
            f"PyTorch could not export the model: {error}",
            code="BW509",
            help=_remedy(str(error)),
        ) from error
    warn_of_assignments(assigned, program)
    return program


@contextmanager
def _evaluation(model: Any) -> Generator[None]:
    """Meanwhile, a module is in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        _evaluate(model)
        yield
    finally:
        for module, training in modes:
            module.training = training


def _evaluate(module: Any) -> None:
    """Put a module into evaluation mode, except for parts that have no modes: the module of an
    exported program refuses to change its own."""
    try:
        module.eval()
    except NotImplementedError:
        for part in module.children():
            _evaluate(part)


def _remedy(problem: str) -> str:
    if "copy__default" in problem and "nn_module_stack" in problem:
        return (
            "the model assigns an input, or another buffer, to a buffer, which torch.export does "
            "not take: assign a copy, self.buffer = x.clone()"
        )
    return (
        "torch.export.export fails with the same error: change the model or dynamic_shapes until "
        "the export succeeds"
    )


def _register_caches() -> None:
    """Let PyTorch take apart the caches of `transformers`, which many of its models return.

    `transformers` registers them only in its own exporters.
    """
    if "transformers.cache_utils" not in sys.modules:
        return
    with suppress(ImportError):
        from transformers.integrations import executorch

        register: Any = getattr(executorch, "register_dynamic_cache_export_support", None)
        if register is not None:
            register()


def _arguments(given: Any) -> tuple[Any, ...] | None:
    """The positional example arguments."""
    import torch

    if given is None:
        return None
    if isinstance(given, torch.Tensor):
        raise OptionError(
            "example_inputs is one tensor, not a sequence of arguments",
            code="BW908",
            help="bw.compile(model, (x,))",
        )
    if isinstance(given, (str, bytes, Mapping)) or not isinstance(given, Iterable):
        kind = type(cast("Any", given)).__name__
        raise OptionError(
            f"example_inputs is a {kind}, not a sequence of arguments",
            code="BW908",
            help="bw.compile(model, (x,)); arguments by name: example_kwargs={...}",
        )
    return tuple(cast("Iterable[Any]", given))


def _keywords(given: Any) -> dict[str, Any] | None:
    """The example arguments that the module is called with by name."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) for name in cast("Mapping[Any, Any]", given)
    ):
        raise OptionError(
            "example_kwargs is not a dict of arguments by name, but a "
            f"{type(cast('Any', given)).__name__}",
            code="BW908",
            help='bw.compile(model, (x,), example_kwargs={"mask": mask})',
        )
    return {**cast("Mapping[str, Any]", given)}
