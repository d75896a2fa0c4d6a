"""Calls compiled functions with arrays of any framework.

Arrays go to the FFI as they are; it reads NumPy arrays, torch tensors and other DLPack objects
without copying. What compiled code cannot take in place is copied first: arrays that are not
contiguous, not aligned to their element, or in foreign byte order. Copies are counted, and written
back where the function writes its argument. Results come back in the framework of the first array,
without one in that of the model (`framework`), if it is imported, or else as NumPy arrays;
where the caller has memory for them, it follows the arguments, and nothing comes back.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from blockwright.runtime.errors import FFI_ERRORS, error_code, translate
from blockwright.runtime.ffi import tvm_ffi
from blockwright.runtime.results import describe, require_apart
from blockwright.support import ArgumentError

_HEADER_SIZE, _DTYPE_OFFSET, _DEVICE_CPU = 24, 20, 1
_DLPACK_KINDS = {
    "bfloat16": 4,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
"""NumPy extension types by name: their DLPack type codes, which NumPy itself does not know."""

_DLPACK_FLAGS = 24
"""Where a versioned capsule's tensor keeps its flags: version, context and deleter stand before."""

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


class _Interface:
    """Lends memory to NumPy; keeps its owner alive."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


class NativeFunction:
    """A compiled function, callable with arrays and numbers.

    Attributes:
        name: for messages.
        parameters: argument names; may be empty when unknown.
        written: positions of arguments the function writes; None means any may be written.
        results: names of what the function returns, or writes where memory for all of them follows
            the arguments.
        library: what it came from; kept, because memory goes back when a library is dropped.
        framework: the package of results when no argument is an array; "" for NumPy.
        copies: how many arguments were copied so far because of their layout.
    """

    # (Slots are emptied in this order: the function is gone when the library goes.)
    __slots__ = (
        "_call", "copies", "framework", "library", "name", "parameters", "results", "written",
    )  # fmt: skip

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        parameters: Sequence[str] = (),
        written: Sequence[int] | None = None,
        results: Sequence[str] = (),
        library: object = None,
        framework: str = "",
    ) -> None:
        self._call, self.name, self.parameters = call, name, tuple(parameters)
        self.library, self.framework = library, framework
        self.results = tuple(results)
        behind = range(len(parameters), len(parameters) + len(results))
        self.written = None if written is None else frozenset((*written, *behind))
        self.copies = 0

    def __repr__(self) -> str:
        return f"<compiled function {self.name}({', '.join(self.parameters)})>"

    def __call__(self, *args: Any) -> Any:
        """Calls the function. Raises: ArgumentError (BW7xx) naming the argument and the remedy."""
        kind: type[Any] | None = None
        for value in args:
            class_ = value.__class__
            if class_ is np.ndarray:
                if not value.flags.carray:
                    return self._call_with_copies(args, everything=False)
            elif class_ is _torch_tensor or class_ is _torch_parameter:
                # The FFI would ignore a pending negation.
                if not value.is_contiguous() or value.is_neg():
                    return self._call_with_copies(args, everything=False)
            elif class_ not in _SIMPLE:
                _find_torch()
                return self._call_with_copies(args, everything=False)
            else:
                continue
            kind = kind or class_
        try:
            result = self._call(*args)
        except BufferError:  # an element type or byte order that the exchange protocol lacks
            return self._call_with_copies(args, everything=False)
        except FFI_ERRORS as error:
            if error_code(error) == "BW706":  # memory for results may be all that needs a copy
                everything = not self._is_result(len(args) - 1)
                return self._call_with_copies(args, everything=everything)
            self._check_arguments(args)
            raise translate(error) from None
        if result is None or type(result) is kind:
            return result
        return _convert(result, kind or self._usual_kind())

    def _usual_kind(self) -> type[Any]:
        """The class of results when no argument is an array."""
        framework: Any = sys.modules.get(self.framework) if self.framework else None
        return cast("type[Any]", getattr(framework, "Tensor", np.ndarray))

    def _call_with_copies(self, args: tuple[Any, ...], *, everything: bool) -> Any:
        """The general path: adapts each argument, calls, writes copies back."""
        kind: type[Any] | None = None
        ready: list[Any] = []
        back: list[tuple[Any, Any]] = []
        copies = 0
        for index, value in enumerate(args):
            adapted, copy = self._adapt(index, value, everything)
            if copy is not None:
                copies += 1
                if self.written is None or index in self.written:
                    back.append((value, copy))
            if kind is None and not _is_number(value):
                kind = value.__class__
            ready.append(adapted)
        if back and self._is_result(len(args) - 1):
            require_apart(self._written_memory(args), self._label)
        try:
            result = self._call(*ready)
        except FFI_ERRORS as error:
            if error_code(error) == "BW706" and not everything:
                return self._call_with_copies(args, everything=True)
            self._check_arguments(args)
            raise translate(error) from None
        self.copies += copies
        for original, copy in back:
            _write_back(original, copy)
        return result if result is None else _convert(result, kind or self._usual_kind())

    def _is_result(self, index: int) -> bool:
        return bool(self.results) and index >= len(self.parameters)

    def _written_memory(self, args: Sequence[Any]) -> Iterator[tuple[int, np.ndarray]]:
        """What a call writes, results among it; what lies on devices is left out."""
        for index, value in enumerate(args):
            written = self._is_result(index) or index in (self.written or ())
            if written and _on_host(value):
                yield index, _elements(value)

    def _check_arguments(self, args: Sequence[Any]) -> None:
        """Some of torch's devices, and large numbers, cannot even be handed over; their error says
        nothing of it."""
        for index, value in enumerate(args):
            if _is_number(value):
                self._number(index, value)
            if _is_torch(value) and value.device.type not in ("cpu", "cuda"):
                raise ArgumentError(
                    f"{self._label(index)} is on device '{value.device}', not the CPU",
                    code="BW705",
                    help="move the tensor to the CPU first",
                )

    def _adapt(self, index: int, value: Any, everything: bool) -> tuple[Any, Any]:
        """What to pass for one argument, and the copy made of it, if any.

        With `everything` arguments are copied whatever their layout. Memory for results is not: it
        is the arguments that make way for it.
        """
        if self._is_result(index):
            everything = False
        elif _is_number(value):
            return self._number(index, value), None
        if _is_numpy(value):
            return self._adapt_numpy(index, value, everything)
        if _is_torch(value):
            return self._adapt_torch(index, value, everything)
        if isinstance(value, tvm_ffi().Tensor) or hasattr(value, "__dlpack__"):
            return self._adapt_dlpack(index, value, everything)
        raise ArgumentError(
            f"{self._label(index)} is {describe(value)}, not an array"
            f"{'' if self._is_result(index) else ' or a number'}",
            code="BW702",
            help="pass a NumPy array, a torch tensor, or another array that supports DLPack",
        )

    def _number(self, index: int, value: Any) -> Any:
        """A number as the FFI takes it."""
        number: Any = cast("Any", value).item() if isinstance(value, np.generic) else value
        if isinstance(number, int) and not -(2**63) <= number < 2**63:
            raise ArgumentError(f"{self._label(index)} is {number}, more than calls can pass",
                                code="BW702",
                                help="pass such a number in an array of one element")  # fmt: skip
        return number

    def _read_only(self, index: int) -> ArgumentError:
        return ArgumentError(f"{self._label(index)} is read-only, and the function writes it",
                             code="BW707", help="pass a writable array")  # fmt: skip

    def _adapt_numpy(self, index: int, value: np.ndarray, everything: bool) -> tuple[Any, Any]:
        dtype = value.dtype
        special = _DLPACK_KINDS.get(dtype.name)
        if special is None and dtype.kind not in "biufc":
            raise ArgumentError(
                f"{self._label(index)} has NumPy data type {dtype}, which compiled code lacks",
                code="BW703",
                help="convert it to a number type first, with .astype(...)",
            )
        copy = None
        flags = value.flags
        if not flags.writeable and self.written is not None and index in self.written:
            raise self._read_only(index)
        if not (flags.c_contiguous and flags.aligned and dtype.isnative) or everything:
            # ascontiguousarray keeps an array whose only fault is its address.
            copy = value = np.array(value, dtype.newbyteorder("="), order="C", copy=True)
        elif not flags.writeable:
            if self.written is None:
                copy = value = value.copy()
            else:
                value = _lend_writable(value)
        if special is None:
            return value, copy
        return _with_dtype(value, special), copy

    def _adapt_torch(self, index: int, value: Any, everything: bool) -> tuple[Any, Any]:
        torch: Any = sys.modules["torch"]
        if value.layout != torch.strided:
            raise ArgumentError(
                f"{self._label(index)} is a sparse tensor ({value.layout})",
                code="BW702",
                help="pass .to_dense()",
            )
        value = value.detach()
        plain = value.resolve_conj().resolve_neg()
        fits = plain is value and plain.is_contiguous() and not _misaligned(plain)
        if everything or not fits:
            copy = plain.clone(memory_format=torch.contiguous_format)
            return copy, copy
        return plain, None

    def _adapt_dlpack(self, index: int, value: Any, everything: bool) -> tuple[Any, Any]:
        if self._is_result(index) and _marked_read_only(value):
            raise self._read_only(index)
        try:
            tensor = tvm_ffi().from_dlpack(value)
        except Exception as error:
            raise ArgumentError(
                f"{self._label(index)} ({describe(value)}) cannot be read through DLPack: "
                f"{str(error).strip()}",
                code="BW702",
            ) from error
        on_host = tensor.device.dlpack_device_type() == _DEVICE_CPU
        if on_host and (everything or not tensor.is_contiguous() or _misaligned(tensor)):
            copy = np.array(_to_numpy(tensor), order="C", copy=True)
            special = _DLPACK_KINDS.get(copy.dtype.name)
            return (copy if special is None else _with_dtype(copy, special)), copy
        return tensor, None

    def _label(self, index: int) -> str:
        place = index - len(self.parameters)
        if 0 <= place < len(self.results):
            return f"result {place + 1} '{self.results[place]}' of {self.name}"
        known = index < len(self.parameters)
        name = f" '{self.parameters[index]}'" if known else ""
        return f"argument {index + 1}{name} of {self.name}"


_FRAMEWORKS = {"jax": "jax.dlpack", "jaxlib": "jax.dlpack"}
"""Package of an array class to the module whose `from_dlpack` makes such arrays, if not itself."""

_SIMPLE = frozenset((bool, int, float))
_torch_tensor: Any = None
_torch_parameter: Any = None


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS)


def _is_numpy(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _find_torch() -> None:
    """Learns torch's classes once torch is in use; this package never imports it."""
    global _torch_tensor, _torch_parameter
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "Tensor"):
        _torch_tensor, _torch_parameter = torch.Tensor, torch.nn.Parameter


def _marked_read_only(value: Any) -> bool:
    """Whether the exchange protocol, in its versions that can, marks an array as read-only."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
        head = _capsule_pointer(capsule, b"dltensor_versioned")
    except (TypeError, ValueError, AttributeError, BufferError):
        return False
    return bool(ctypes.c_uint64.from_address(head + _DLPACK_FLAGS).value & 1)


def as_numpy(value: Any) -> Any:
    """A NumPy array over host memory of another framework; other things as they are."""
    if not _on_host(value):
        return value
    if _marked_read_only(value):
        return np.from_dlpack(value)
    return _to_numpy(tvm_ffi().from_dlpack(value))


def _on_host(value: Any) -> bool:
    if _is_torch(value):
        return bool(value.device.type == "cpu")
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and bool(device()[0] == _DEVICE_CPU)


def _misaligned(tensor: Any) -> bool:
    """Whether a tensor's first element is at no multiple of its size; torch's and the FFI's."""
    size = tensor.element_size() if _is_torch(tensor) else max(1, tensor.dtype.itemsize)
    return bool(tensor.data_ptr() % size)


def _elements(value: Any) -> np.ndarray:
    """The memory of an array, as an array of its shape whose elements have no type."""
    if _is_numpy(value):
        return value
    if not _is_torch(value):
        return as_numpy(value)
    size = value.element_size()
    strides = tuple(step * size for step in value.stride())
    interface = {"version": 3, "shape": tuple(value.shape), "typestr": f"|V{size}",
                 "strides": strides, "data": (value.data_ptr(), False)}  # fmt: skip
    return np.asarray(_Interface(value, interface))


def _lend_writable(array: np.ndarray) -> np.ndarray:
    """The same memory without the read-only mark, which the exchange protocol cannot express."""
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    if array.dtype.name in _DLPACK_KINDS:
        interface["typestr"] = f"<u{array.dtype.itemsize}"
        interface["descr"] = [("", interface["typestr"])]
        return np.asarray(_Interface(array, interface)).view(array.dtype)
    return np.asarray(_Interface(array, interface))


def _with_dtype(array: np.ndarray, code: int) -> Any:
    """A tensor over `array` whose element type is one that NumPy cannot export.

    The words are exported as integers; then the type in the tensor object, which stands at a fixed
    place of its public layout, is set.
    """
    bits = 8 * array.dtype.itemsize
    tensor = tvm_ffi().from_dlpack(array.view(f"u{array.dtype.itemsize}"))
    place = tensor.__chandle__() + _HEADER_SIZE + _DTYPE_OFFSET
    ctypes.c_uint32.from_address(place).value = code | bits << 8 | 1 << 16
    return tensor


def _to_numpy(tensor: Any) -> np.ndarray:
    """A NumPy array over a tensor in host memory, for all element types."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):
        name = str(tensor.dtype)
        if name not in _DLPACK_KINDS:
            raise
    ml_dtypes = importlib.import_module("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    strides = tuple(s * dtype.itemsize for s in tensor.strides)
    interface = {
        "version": 3,
        "shape": tuple(tensor.shape),
        "typestr": f"<u{dtype.itemsize}",
        "strides": strides,
        "data": (tensor.data_ptr(), False),
    }
    return np.asarray(_Interface(tensor, interface)).view(dtype)


def _convert(value: Any, kind: type[Any]) -> Any:
    """A result in the framework `kind` belongs to; arrays become tuples."""
    ffi = tvm_ffi()
    if isinstance(value, ffi.Tensor):
        if kind is np.ndarray:
            return _to_numpy(value)
        if kind.__module__.partition(".")[0] == "torch":
            return sys.modules["torch"].from_dlpack(value)
        if issubclass(kind, np.ndarray):
            return _to_numpy(value)
        package = kind.__module__.partition(".")[0]
        framework: Any = sys.modules.get(_FRAMEWORKS.get(package, package))
        read = getattr(framework, "from_dlpack", None)
        return value if read is None or isinstance(value, kind) else read(value)
    if isinstance(value, ffi.Array):
        return tuple(_convert(item, kind) for item in value)
    return value


def _write_back(original: Any, copy: Any) -> None:
    if _is_numpy(original):
        if original.flags.writeable:
            original[...] = copy
    elif _is_torch(original):
        original.detach().copy_(copy)
    else:
        target = _to_numpy(tvm_ffi().from_dlpack(original))
        target[...] = copy
