"""Zero-copy conversion of arrays of any framework to NumPy arrays and DLPack tensors, and back."""

from __future__ import annotations

import ctypes
import importlib
import sys
from typing import Any

import numpy as np

from blockwright.runtime.ffi import tvm_ffi

_HEADER_SIZE, _DTYPE_OFFSET, DEVICE_CPU = 24, 20, 1
DLPACK_KINDS = {
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
"""DLPack type codes of NumPy extension types by name; NumPy itself does not know them."""

_BYTES = {"int4": "i1", "int2": "i1", "uint4": "u1", "uint2": "u1", "float4_e2m1fn": "u1"}
"""NumPy extension types of less than 8 bits, whose elements take a byte each → the byte's type."""

_DLPACK_FLAGS = 24
"""Offset of the flags in a versioned capsule's tensor, after version, context and deleter."""

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


_FRAMEWORKS = {"jax": "jax.dlpack", "jaxlib": "jax.dlpack"}
"""Package of an array class → module with its `from_dlpack`, where that is another module."""


def in_bytes(array: np.ndarray) -> np.ndarray:
    """An array of elements below 8 bits as one of bytes, which is how calls pass them."""
    byte = _BYTES.get(array.dtype.name)
    return array if byte is None else array.view(byte)


class _Interface:
    """Exposes memory to NumPy and keeps its owner alive."""

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner, self.__array_interface__ = owner, interface


def is_number(value: Any) -> bool:
    """Whether a value is a number, including elements of NumPy arrays of any supported type."""
    if isinstance(value, _NUMBERS):
        return True
    kind: Any = value.__class__
    return issubclass(kind, np.generic) and kind.__name__ in DLPACK_KINDS


def is_numpy(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def marked_read_only(value: Any) -> bool:
    """Whether an array is read-only according to a DLPack version that has the flag."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
        head = _capsule_pointer(capsule, b"dltensor_versioned")
    except (TypeError, ValueError, AttributeError, BufferError):
        return False
    return bool(ctypes.c_uint64.from_address(head + _DLPACK_FLAGS).value & 1)


def as_numpy(value: Any) -> Any:
    """A NumPy view of another framework's array in host memory; other values unchanged."""
    if not on_host(value):
        return value
    if marked_read_only(value):
        return np.from_dlpack(value)
    return to_numpy(tvm_ffi().from_dlpack(value))


def on_host(value: Any) -> bool:
    if is_torch(value):
        return bool(value.device.type == "cpu")
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and bool(device()[0] == DEVICE_CPU)


def misaligned(tensor: Any) -> bool:
    """Whether a tensor's address is not a multiple of its element size; for torch and the FFI."""
    size = tensor.element_size() if is_torch(tensor) else max(1, tensor.dtype.itemsize)
    return bool(tensor.data_ptr() % size)


def in_whole_steps(array: np.ndarray) -> bool:
    """Whether all strides of an array are whole numbers of elements, and none is negative."""
    return all(step >= 0 and step % array.itemsize == 0 for step in array.strides)


def elements(value: Any) -> np.ndarray:
    """A view of the array's memory with the same shape and strides and untyped elements."""
    if is_numpy(value):
        return value
    if not is_torch(value):
        return as_numpy(value)
    size = value.element_size()
    strides = tuple(step * size for step in value.stride())
    interface = {
        "version": 3,
        "shape": tuple(value.shape),
        "typestr": f"|V{size}",
        "strides": strides,
        "data": (value.data_ptr(), False),
    }
    return np.asarray(_Interface(value, interface))


def lend_writable(array: np.ndarray) -> np.ndarray:
    """A writable view of a read-only array, because DLPack cannot express read-only memory."""
    interface = dict(array.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    if array.dtype.name in DLPACK_KINDS:
        interface["typestr"] = f"<u{array.dtype.itemsize}"
        interface["descr"] = [("", interface["typestr"])]
        return np.asarray(_Interface(array, interface)).view(array.dtype)
    return np.asarray(_Interface(array, interface))


def with_dtype(array: np.ndarray, code: int) -> Any:
    """A tensor over `array` with an element type that NumPy cannot export.

    The elements are exported as integers; then the type in the tensor object, at a fixed offset of
    its public layout, is overwritten.
    """
    bits = 8 * array.dtype.itemsize
    tensor = tvm_ffi().from_dlpack(array.view(f"u{array.dtype.itemsize}"))
    place = tensor.__chandle__() + _HEADER_SIZE + _DTYPE_OFFSET
    ctypes.c_uint32.from_address(place).value = code | bits << 8 | 1 << 16
    return tensor


def to_numpy(tensor: Any) -> np.ndarray:
    """A NumPy view of a tensor in host memory, for all element types."""
    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):
        name = str(tensor.dtype)
        if name not in DLPACK_KINDS:
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


def converted(value: Any, kind: type[Any]) -> Any:
    """Convert a result to the framework of the class `kind`; FFI arrays become tuples."""
    ffi = tvm_ffi()
    if isinstance(value, ffi.Tensor):
        if kind is np.ndarray:
            return to_numpy(value)
        if kind.__module__.partition(".")[0] == "torch":
            return sys.modules["torch"].from_dlpack(value)
        if issubclass(kind, np.ndarray):
            return to_numpy(value)
        package = kind.__module__.partition(".")[0]
        framework: Any = sys.modules.get(_FRAMEWORKS.get(package, package))
        read = getattr(framework, "from_dlpack", None)
        return value if read is None or isinstance(value, kind) else read(value)
    if isinstance(value, ffi.Array):
        return tuple(converted(item, kind) for item in value)
    return value


def write_back(original: Any, copy: Any) -> None:
    if is_numpy(original):
        if original.flags.writeable:
            in_bytes(original)[...] = copy
    elif is_torch(original):
        original.detach().copy_(copy)
    else:
        target = to_numpy(tvm_ffi().from_dlpack(original))
        target[...] = copy
