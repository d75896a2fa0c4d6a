"""Call compiled functions with arrays of any framework.

The FFI reads NumPy arrays, torch tensors and other DLPack objects without copying. Arrays that
compiled code cannot access in place are copied first: arrays that are not contiguous, not aligned
to their element size, or in non-native byte order. An array that has the strides that its parameter
declares is passed as it is. Copies are counted, and written back where the
function writes its argument. Results are converted to the framework of the first array argument.
Without one they are converted to the model's framework (`framework`) if that is imported, else to
NumPy. Where the caller passes memory for the results, it follows the arguments, and the call
returns None.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from blockwright.runtime.arrays import (
    DEVICE_CPU,
    DLPACK_KINDS,
    converted,
    elements,
    in_bytes,
    in_whole_steps,
    is_number,
    is_numpy,
    is_torch,
    lend_writable,
    marked_read_only,
    misaligned,
    on_host,
    to_numpy,
    with_dtype,
    write_back,
)
from blockwright.runtime.errors import FFI_ERRORS, argument_of, error_code, translate
from blockwright.runtime.ffi import tvm_ffi
from blockwright.runtime.refused import refuse_numpy, refuse_torch
from blockwright.runtime.results import describe, require_apart, require_distinct, require_unshared
from blockwright.support import ArgumentError
from blockwright.support.kinds import number_text
from blockwright.support.uncopied import Uncopied


class NativeFunction(Uncopied):
    """A compiled function, callable with arrays and numbers.

    Attributes:
        name: function name for messages.
        parameters: parameter names; may be empty when unknown.
        written: positions of the arguments that the function writes; None means possibly all.
        results: names of the results; memory for them may be passed after the arguments.
        library: the library of the function; keeps its memory alive, which is otherwise released.
        framework: package of the results when no argument is an array; "" for NumPy.
        scalars: element types of the parameters that are scalars, by position, where known.
        objects: positions of the arguments that are any value that the FFI passes.
        strided: positions of the arguments whose parameters declare strides.
        updates: whether written arguments are values that a model updates in place: they may not
            share memory with other arguments. Otherwise such arguments are copied.
        copies: number of arguments copied so far because of their layout.
    """

    # Slots are cleared in this order: the function must go before the library.
    __slots__ = (
        "_call",
        "_least_written",
        "copies",
        "framework",
        "library",
        "name",
        "objects",
        "parameters",
        "results",
        "scalars",
        "strided",
        "updates",
        "written",
    )

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        parameters: Sequence[str] = (),
        written: Sequence[int] | None = None,
        results: Sequence[str] = (),
        library: object = None,
        framework: str = "",
        scalars: Mapping[int, str] = MappingProxyType({}),
        updates: bool = False,
        objects: Sequence[int] = (),
        strided: Sequence[int] = (),
    ) -> None:
        self._call, self.name, self.parameters = call, name, tuple(parameters)
        self.library, self.framework = library, framework
        self.results, self.scalars = tuple(results), dict(scalars)
        self.updates, self.objects = updates, frozenset(objects)
        self.strided = frozenset(strided)
        behind = range(len(parameters), len(parameters) + len(results))
        self.written = None if written is None else frozenset((*written, *behind))
        minimum = 0 if self.written is None else min(self.written, default=sys.maxsize)
        self._least_written = minimum  # the lowest position of an argument that is written
        self.copies = 0

    def __repr__(self) -> str:
        return f"<compiled function {self.name}({', '.join(self.parameters)})>"

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function with positional or keyword arguments.

        Raises: ArgumentError (BW7xx) naming the argument and the remedy.
        """
        return self.call(self._by_position(args, named) if named else args)

    def call(self, args: tuple[Any, ...]) -> Any:
        """Call with all arguments by position, in a tuple: the fast path of models."""
        kind: type[Any] | None = None
        try:
            for value in args:
                class_ = value.__class__
                if class_ is _numpy_array:
                    if not value.flags.carray:
                        break
                elif class_ is _torch_tensor or class_ is _torch_parameter:
                    # The FFI would ignore a pending negation or released memory.
                    if not value.is_contiguous() or value.is_neg() or not value.untyped_storage():
                        break
                elif class_ is int:
                    if not -_BEYOND <= value < _BEYOND:
                        break
                    continue
                elif class_ not in _SIMPLE:
                    _find_torch()
                    break
                else:
                    continue
                kind = kind or class_
            else:
                if len(args) > self._least_written:
                    self._announce_writes(args)
                result = self._call(*args)
                if type(result) is kind or result is None:
                    return result
                return converted(result, kind or self._usual_kind())
        except BufferError:  # an element type or byte order that DLPack cannot express
            pass
        except ArgumentError:
            raise
        except FFI_ERRORS as error:
            if error_code(error) != "BW706":
                self._check_arguments(args)
                raise translate(error) from None
            # Perhaps only the memory for results needs a copy.
            everything = not self._is_result(len(args) - 1)
            return self._call_with_copies(args, everything=everything)
        return self._call_with_copies(args, everything=False)

    def _by_position(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Order all arguments of a call by parameters, then results."""
        names = (*self.parameters, *self.results)
        given = dict(zip(names, args, strict=False))
        for name, value in named.items():
            if name not in names or name in given:
                what = "is given twice" if name in given else "does not exist"
                raise ArgumentError(
                    f"argument `{name}` of {self.name} {what}",
                    code="BW701",
                    help=f"arguments: {', '.join(names) or 'none'}",
                )
            given[name] = value
        missing = [name for name in self.parameters if name not in given]
        if missing:
            raise ArgumentError(
                f"{self.name}: arguments missing: {', '.join(missing)}",
                code="BW701",
                help="pass each parameter once",
            )
        order = [name for name in names if name in given]
        return (*(given[name] for name in order), *args[len(names) :])

    def _usual_kind(self) -> type[Any]:
        """The class of results when no argument is an array."""
        framework: Any = sys.modules.get(self.framework) if self.framework else None
        return cast("type[Any]", getattr(framework, "Tensor", np.ndarray))

    def _call_with_copies(
        self, args: tuple[Any, ...], *, everything: bool, compact: frozenset[int] = frozenset()
    ) -> Any:
        """General path: adapt each argument, call, write copies back.

        Only compiled code knows declared strides. If an argument does not have them, the call is
        repeated with that argument in `compact`: the positions of those that must be contiguous.
        """
        if self.updates:
            require_unshared(self._updated_memory(args), self._memory(args), self._label)
        kind: type[Any] | None = None
        ready: list[Any] = []
        back: list[tuple[Any, Any]] = []
        copies = 0
        for index, value in enumerate(args):
            spread = index in self.strided and index not in compact and not everything
            adapted, copy = self._adapt(index, value, everything, spread)
            if copy is not None:
                copies += 1
                if self.written is None or index in self.written:
                    back.append((value, copy))
            if kind is None and not is_number(value) and index not in self.objects:
                kind = value.__class__
            ready.append(adapted)
        if back or self.strided:
            for index, value in self._written_memory(args):
                require_distinct(value, self._label(index))
        if back and self._is_result(len(args) - 1):
            require_apart(self._written_memory(args), self._label)
        self._announce_writes(args)
        try:
            result = self._call(*ready)
        except BufferError as error:
            raise ArgumentError(
                f"an argument of {self.name} cannot be passed through the FFI: {error}",
                code="BW703",
                help="convert it to a common number type",
            ) from None
        except FFI_ERRORS as error:
            if error_code(error) == "BW706" and not everything:
                place = argument_of(error)
                if place is None or place not in self.strided - compact:
                    return self._call_with_copies(args, everything=True)
                return self._call_with_copies(args, everything=False, compact=compact | {place})
            self._check_arguments(args)
            raise translate(error) from None
        self.copies += copies
        for original, copy in back:
            write_back(original, copy)
        return result if result is None else converted(result, kind or self._usual_kind())

    def _announce_writes(self, args: Sequence[Any]) -> None:
        """Increment the version counters of the torch tensors that the call writes.

        Autograd compares them to find out that a tensor that it saved has been changed.

        Raises: ArgumentError (BW707) for a tensor whose history autograd would need to rewrite.
        """
        if _torch_tensor is None:
            return
        count = len(args)
        for index in range(count) if self.written is None else self.written:
            if index < count and isinstance(args[index], _torch_tensor):
                if args[index].requires_grad:
                    self._require_no_grad(index)
                _increment_version(args[index])

    def _require_no_grad(self, index: int) -> None:
        """Reject a written tensor that requires gradients, unless they are disabled.

        Its gradient would be that of its former value; PyTorch rejects such tensors in `out=` too.
        """
        if sys.modules["torch"].is_grad_enabled():
            raise ArgumentError(
                f"{self._label(index)} requires gradients, and autograd does not record the call, "
                "which writes it",
                code="BW707",
                help="call within torch.no_grad(), or pass x.detach()",
            )

    def _is_result(self, index: int) -> bool:
        return bool(self.results) and index >= len(self.parameters)

    def _memory(self, args: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
        """Host arrays among the arguments."""
        for index, value in enumerate(args[: len(self.parameters)]):
            if (is_numpy(value) or is_torch(value)) and on_host(value):
                yield index, elements(value)

    def _updated_memory(self, args: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
        """Host arrays among the arguments that the call writes."""
        return ((k, array) for k, array in self._memory(args) if k in (self.written or ()))

    def _written_memory(self, args: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
        """Host arrays that the call writes, including results; device arrays are skipped."""
        for index, value in enumerate(args):
            written = self._is_result(index) or index in (self.written or ())
            if written and on_host(value):
                yield index, elements(value)

    def _check_arguments(self, args: Sequence[Any]) -> None:
        """Diagnose arguments that the FFI cannot pass and whose FFI error is unspecific: tensors
        on some torch devices, special torch tensors and large integers."""
        for index, value in enumerate(args):
            if is_number(value):
                self._number(index, value)
            elif is_torch(value):
                refuse_torch(value, self._label(index))
            if is_torch(value) and value.device.type not in ("cpu", "cuda"):
                raise ArgumentError(
                    f"{self._label(index)} is on device '{value.device}', not the CPU",
                    code="BW705",
                    help="move the tensor to the CPU first",
                )

    def _adapt(self, index: int, value: Any, everything: bool, spread: bool) -> tuple[Any, Any]:
        """The value to pass for one argument, and the copy made of it, if any.

        With `spread`, it need not be contiguous. With `everything`, arguments are copied regardless
        of their layout, but memory for results is not: if it overlaps arguments, those are copied.
        """
        if self._is_result(index):
            everything = False
        elif is_number(value):
            return self._number(index, value), None
        if is_numpy(value):
            return self._adapt_numpy(index, value, everything, spread)
        if is_torch(value):
            return self._adapt_torch(index, value, everything, spread)
        if index in self.objects and not hasattr(value, "__dlpack__"):
            return value, None
        if isinstance(value, tvm_ffi().Tensor) or hasattr(value, "__dlpack__"):
            return self._adapt_dlpack(index, value, everything, spread)
        raise ArgumentError(
            f"{self._label(index)} is {describe(value)}, not an array"
            f"{'' if self._is_result(index) else ' or a number'}",
            code="BW702",
            help="pass a NumPy array, a torch tensor, or another array that supports DLPack",
        )

    def _number(self, index: int, value: Any) -> Any:
        """Convert a number to a type that the FFI accepts: float or a signed integer of 64 bits.

        Larger integers are passed as a float, or as an array without axes for a uint64.
        """
        number: Any = value
        if isinstance(value, np.generic):  # those of extension types convert to themselves
            special = number.dtype.name in DLPACK_KINDS
            number = float(number) if special else number.item()
        if isinstance(number, int) and not -_BEYOND <= number < _BEYOND:
            type_ = self.scalars.get(index, "")
            if type_ == "uint64" and 0 < number < 2 * _BEYOND:
                return np.array(number, np.uint64)
            if "float" in type_ and abs(number) < _LARGEST:
                return float(number)
            raise ArgumentError(
                f"{self._label(index)} is {number_text(number)}, which does not fit "
                f"{type_ or 'int64, the type of integers in calls'}",
                code="BW702",
                help="pass a number in range",
            )
        return number

    def _read_only(self, index: int) -> ArgumentError:
        return ArgumentError(
            f"{self._label(index)} is read-only, and the function writes it",
            code="BW707",
            help="pass a writable array",
        )

    def _adapt_numpy(
        self, index: int, value: np.ndarray, everything: bool, spread: bool
    ) -> tuple[Any, Any]:
        refuse_numpy(value, self._label(index))
        value = in_bytes(value)
        dtype = value.dtype
        special = DLPACK_KINDS.get(dtype.name)
        if special is None and (dtype.kind not in "biufc" or dtype.char in "gG"):  # long double
            raise ArgumentError(
                f"{self._label(index)} has unsupported NumPy data type {dtype}",
                code="BW703",
                help="convert it to a number type first, with .astype(...)",
            )
        copy = None
        flags = value.flags
        if not flags.writeable and self.written is not None and index in self.written:
            raise self._read_only(index)
        dense = flags.c_contiguous or (spread and in_whole_steps(value))
        if not (dense and flags.aligned and dtype.isnative) or everything:
            # Not np.ascontiguousarray: it does not copy an array that is only misaligned.
            copy = value = np.array(value, dtype.newbyteorder("="), order="C", copy=True)
        elif not flags.writeable:
            if self.written is None:
                copy = value = value.copy()
            else:
                value = lend_writable(value)
        if special is None:
            return value, copy
        return with_dtype(value, special), copy

    def _adapt_torch(
        self, index: int, value: Any, everything: bool, spread: bool
    ) -> tuple[Any, Any]:
        torch: Any = sys.modules["torch"]
        refuse_torch(value, self._label(index))
        value = value.detach()
        plain = value.resolve_conj().resolve_neg()
        dense = spread or plain.is_contiguous()
        fits = plain is value and dense and not misaligned(plain)
        if everything or not fits:
            copy = plain.clone(memory_format=torch.contiguous_format)
            return copy, copy
        return plain, None

    def _adapt_dlpack(
        self, index: int, value: Any, everything: bool, spread: bool
    ) -> tuple[Any, Any]:
        if self._is_result(index) and marked_read_only(value):
            raise self._read_only(index)
        try:
            tensor = tvm_ffi().from_dlpack(value)
        except Exception as error:
            raise ArgumentError(
                f"{self._label(index)} ({describe(value)}) cannot be read through DLPack: "
                f"{str(error).strip()}",
                code="BW702",
            ) from error
        on_host = tensor.device.dlpack_device_type() == DEVICE_CPU
        dense = spread or tensor.is_contiguous()
        if on_host and (everything or not dense or misaligned(tensor)):
            copy = np.array(to_numpy(tensor), order="C", copy=True)
            special = DLPACK_KINDS.get(copy.dtype.name)
            return (copy if special is None else with_dtype(copy, special)), copy
        return tensor, None

    def _label(self, index: int) -> str:
        place = index - len(self.parameters)
        if 0 <= place < len(self.results):
            return f"result {place + 1} '{self.results[place]}' of {self.name}"
        known = index < len(self.parameters)
        name = f" '{self.parameters[index]}'" if known else ""
        return f"argument {index + 1}{name} of {self.name}"


_BEYOND = 1 << 63
_LARGEST = 1 << 1023  # Python's conversion to float fails from 2^1024 on
_SIMPLE = frozenset((bool, float))
_numpy_array = np.ndarray  # a global is faster: calls of small models take about a microsecond
_torch_tensor: Any = None
_torch_parameter: Any = None
_increment_version: Any = None


def _find_torch() -> None:
    """Look up torch's classes once torch is loaded; this package never imports it."""
    global _torch_tensor, _torch_parameter, _increment_version
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        classes = torch.Tensor, torch.nn.Parameter
        increment = torch.autograd.graph.increment_version
        _torch_tensor, _torch_parameter, _increment_version = *classes, increment
