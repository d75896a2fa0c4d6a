"""Buffers and parameters that models change: variables of the executable's state.

One table serves all models of a compilation. A buffer is one variable if several models have it,
and it is state in all of them if one changes it. Parameters are treated as buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from blockwright.support import ImporterError


class Update(NamedTuple):
    """The output `value` of a program is the new value of its placeholder `input`."""

    value: str
    input: str


_CHANGES = frozenset({"BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION"})
_RESULTS = frozenset(
    {"USER_OUTPUT", "LOSS_OUTPUT", "GRADIENT_TO_PARAMETER", "GRADIENT_TO_USER_INPUT"}
)
"""Kinds of outputs of an exported program."""


def updates(program: Any) -> list[Update]:
    """The changes of inputs, buffers and parameters by a program in functional form."""
    placeholders = {spec.target: spec.arg.name for spec in program.graph_signature.input_specs}
    result: list[Update] = []
    for spec in program.graph_signature.output_specs:
        if spec.kind.name in _CHANGES:
            is_input = spec.kind.name == "USER_INPUT_MUTATION"
            result.append(
                Update(spec.arg.name, spec.target if is_input else placeholders[spec.target])
            )
    return result


def user_outputs(program: Any) -> list[Any]:
    """The outputs of a program that are results of the model: nodes, numbers and None.

    Raises: ImporterError BW506 for an output that is neither a result nor a change.
    """
    given = program.graph.output_node().args[0]
    result: list[Any] = []
    for spec, value in zip(program.graph_signature.output_specs, given, strict=True):
        if spec.kind.name in _RESULTS:
            result.append(value)
        elif spec.kind.name not in _CHANGES:
            raise ImporterError(
                f"the exported program has an output of the kind {spec.kind.name}",
                code="BW506",
                help="pass the module, or the program as torch.export.export returns it",
            )
    return result


class StateTable:
    """The changed buffers of several models.

    Attributes:
        tensors: variable → the tensor that a model has as a buffer.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self._names: dict[Any, str] = {}

    def add(self, path: str, tensor: Any, model: str) -> None:
        """Add the buffer at `path` of a model, unless another model has it."""
        if layout(tensor) in self._names:
            return
        name, number = path if path not in self.tensors else f"{model}.{path}", 1
        while name in self.tensors:
            name, number = f"{model}.{path}_{number}", number + 1
        self._names[layout(tensor)], self.tensors[name] = name, tensor

    def name_of(self, path: str, tensor: Any) -> str | None:
        """The variable that a weight or buffer is; None if it is a constant.

        Raises: ImporterError (BW512) if it overlaps a variable, so that it is neither.
        """
        name = self._names.get(layout(tensor))
        if name is None:
            for other, changed in self.tensors.items():
                if overlap(tensor, changed):
                    raise overlapping([path, other])
        return name


def layout(tensor: Any) -> tuple[Any, ...]:
    """Identifies the elements that a tensor refers to, while it exists."""
    held = tensor.untyped_storage()._cdata, (tensor.is_neg(), tensor.is_conj())
    return *held, tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def span(tensor: Any) -> tuple[int, int]:
    """Offsets in bytes of the first element and of the end in the storage of a tensor."""
    size, start = tensor.element_size(), tensor.storage_offset()
    if not tensor.numel():
        return start * size, start * size
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((count - 1) * step for count, step in steps)
    return start * size, (start + last + 1) * size


def overlap(a: Any, b: Any) -> bool:
    """Whether two tensors may share memory."""
    if a.untyped_storage()._cdata != b.untyped_storage()._cdata:
        return False
    (first, end), (other, other_end) = span(a), span(b)
    return first < other_end and other < end


def overlapping(paths: Iterable[str]) -> ImporterError:
    """The error for tensors of a model that share memory in a way that is not supported."""
    return ImporterError(
        f"the model changes a buffer in place that shares memory: {', '.join(paths)}",
        code="BW512",
        help="register one contiguous buffer, and take parts of it in forward",
    )
