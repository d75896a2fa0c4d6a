"""Call PyTorch's operators, ATen's and registered ones, on the memory of compiled code.

Arguments and results are zero-copy tensors; an operator's results are copied into the memory that
is planned for them, so they may be views. Complex tensors are stored as pairs of real numbers, one
axis more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, cast

from blockwright.runtime.frameworks.call import (
    CallArguments,
    failed,
    marked,
    mismatch,
    reader,
)
from blockwright.runtime.threads import num_threads

_OWN = ("aten", "prims", "prim")  # operators of PyTorch itself, which keep no arguments
_UNSHARED = 2  # uses of a tensor, and of its memory, with the one that asks for the number


def find(symbol: str) -> Callable[..., object] | None:
    """The function that calls `torch.SYMBOL`, such as "ops.aten.mode.default"; None if there is no
    such operator. Raises: ImportError."""
    import torch

    operator: Any = torch
    for part in symbol.split("."):
        try:
            operator = getattr(operator, part)
        except (AttributeError, RuntimeError):
            return None
    return _Operator(operator) if hasattr(operator, "_schema") else None


class _Operator:
    """One operator as a function of packed arguments."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator
        self._name = str(operator)
        self._own = operator.namespace in _OWN
        self._written = [
            argument.name
            for argument in operator._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        self._read = reader()

    def __call__(self, *values: Any) -> Any:
        given = self._read(values)
        try:
            inputs = [_tensor(value) for value in given.inputs]
            with _settings():
                results = list(_flat(self._results(given, inputs)))
                answer = self._answer(given, results)
            results.clear()
            kept = None if self._own or given.call.late is not None else self._kept(inputs)
        except _Mismatch as error:
            raise mismatch(self._name, str(error)) from None
        except Exception as error:
            raise failed(self._name, error) from error
        if kept is not None:
            raise mismatch(
                self._name,
                f"but keeps its argument {kept}, whose memory is used for other values afterwards",
            )
        return answer

    def _results(self, given: CallArguments, inputs: Sequence[Any]) -> Any:
        call = given.call
        args = [_value(arg, inputs, given.numbers) for arg in call.args]
        named = {name: _value(arg, inputs, given.numbers) for name, arg in call.named.items()}
        if call.functional:
            return _on_copies(self._operator, named)
        if self._written:
            self._copy_written(args, named)
        return self._operator(*args, **named)

    def _copy_written(self, args: list[Any], named: dict[str, Any]) -> None:
        """Replace arguments that the operator changes by copies; nothing reads them afterwards."""
        for place, argument in enumerate(self._operator._schema.arguments):
            if argument.name not in self._written:
                continue
            if place < len(args):
                args[place] = _copied(args[place])
            elif argument.name in named:
                named[argument.name] = _copied(named[argument.name])

    def _answer(self, given: CallArguments, results: Sequence[Any]) -> Any:
        late = given.call.late
        if late is not None:
            return _returned(late, results)
        if len(results) != len(given.outputs):
            raise _Mismatch(f"{len(results)} results, not {len(given.outputs)}")
        for number, (result, output) in enumerate(zip(results, given.outputs, strict=True)):
            place = _tensor(output)
            if result.shape != place.shape or result.dtype != place.dtype:
                raise _Mismatch(f"{_kind(result)} as result {number}, not {_kind(place)}")
            place.copy_(result)
        return None

    def _kept(self, inputs: Sequence[Any]) -> int | None:
        """The number of an argument that the operator still refers to."""
        from torch import _C

        uses: Any = vars(_C)["_storage_Use_Count"]
        for number in range(len(inputs)):
            if sys.getrefcount(inputs[number]) > _UNSHARED:
                return number
            if uses(inputs[number].untyped_storage()._cdata) > _UNSHARED:
                return number
        return None


class _Mismatch(Exception):
    """The results of an operator are not those that the exported model states."""


def _returned(late: Sequence[bool], results: Sequence[Any]) -> Any:
    """Results of sizes that compiled code does not know, followed by these sizes."""
    import torch

    if len(results) != len(late):
        raise _Mismatch(f"{len(results)} results, not {len(late)}")
    if not late:
        return None
    pairs = zip(results, late, strict=True)
    sizes = [size for result, unknown in pairs if unknown for size in result.shape]
    return (*(result.contiguous() for result in results), torch.tensor(sizes))


def _kind(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _tensor(value: Any) -> Any:
    """A tensor of the framework in the memory of a tensor of compiled code."""
    import torch

    return torch.from_dlpack(value)


def _flat(value: Any) -> Iterator[Any]:
    """The tensors that an operator returns, complex ones as pairs of real numbers."""
    import torch

    if isinstance(value, (list, tuple)):
        for part in cast("Sequence[Any]", value):
            yield from _flat(part)
    elif isinstance(value, torch.Tensor):
        tensor = value.detach().resolve_conj().resolve_neg()
        yield torch.view_as_real(tensor) if tensor.is_complex() else tensor
    elif value is not None:
        yield torch.as_tensor(value)


def _copied(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copied(part) for part in cast("Sequence[Any]", value)]
    return value.clone() if hasattr(value, "clone") else value


def _value(value: Any, inputs: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """An argument of the operator, from its form in an `OperatorCall`."""
    import torch

    if isinstance(value, list):
        return [_value(part, inputs, numbers) for part in cast("list[Any]", value)]
    found = marked(value)
    if found is None:
        return value
    key, content = found
    if key == "input":
        return inputs[content]
    if key == "pairs":
        return torch.view_as_complex(inputs[content])
    if key == "number":
        return numbers[content]
    if key == "complex":
        return complex(*content)
    if key == "float":
        return float(content)
    if key == "device":
        return torch.device(content)
    return getattr(torch, content)  # dtype, layout or memory format


def _on_copies(operator: Any, named: dict[str, Any]) -> Any:
    """The results of an operator and the arguments that it changed, which are copied before."""
    from torch._higher_order_ops import auto_functionalize

    call: Any = auto_functionalize.auto_functionalized_v2
    return call(operator, **named)


class _Threads:
    """Limits PyTorch's threads to those of compiled code, which are idle meanwhile."""

    def __init__(self, count: int, before: int) -> None:
        self._count, self._before = count, before

    def __enter__(self) -> None:
        sys.modules["torch"].set_num_threads(self._count)

    def __exit__(self, *_: object) -> None:
        sys.modules["torch"].set_num_threads(self._before)


def _settings() -> AbstractContextManager[Any]:
    """The settings under which operators run, whatever those of the caller are."""
    import torch

    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    if torch.is_autocast_enabled("cpu"):
        stack.enter_context(torch.autocast("cpu", enabled=False))
    allowed, used = num_threads(), torch.get_num_threads()
    if used > allowed:
        stack.enter_context(_Threads(allowed, used))
    return stack
