"""Release the memory of unreachable libraries.

Code is never unloaded: results that outlive their function are freed by library code, and the
threads of the pool run the code of the library loaded first. The memory released is a library's
constants outside of its image, its scratch memory, and result memory cached for the next call.

The FFI counts references to a library: its module object, and each function obtained from it,
wherever those are kept. A library is released when the only remaining reference is the one held
here. The count is checked when a `Library` object is dropped, which functions of this package keep
alive, and at each later load, for libraries whose last reference was held elsewhere.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_Hook = ctypes.CFUNCTYPE(None, ctypes.c_int32)
_Reference = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
IDLE_HOOKS = ("bw_results_idle", "bw_scratch_idle")
"""Functions that libraries export, in C: `void hook(int32_t idle)`. With 1, cached memory is
released, now and when results are freed later; with 0, caching resumes. Libraries of earlier
versions lack the hooks."""

_held: list[_Held] = []
"""Without a lock, because garbage collection may enter here at any point. The code that removes an
entry releases it."""


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """A loaded library.

    Attributes:
        module: address of its FFI object, to which this holds a reference.
        release: releases such a reference.
        hooks: addresses of its hooks.
        constants: memory that the code reads outside of its image. One reference to it is counted
            manually, so that it outlives the interpreter if threads still call the library.
    """

    module: int
    release: Callable[[int], object]
    hooks: tuple[int, ...]
    constants: object


class ReleaseOnDrop:
    """Dropping this object releases memory. It must be dropped after all holders of the library."""

    __slots__ = ("__weakref__",)


def watch(module: Any, name: str, constants: object = None) -> ReleaseOnDrop:
    """Release the memory of a library when it becomes unreachable.

    Arguments: `module` is its FFI object, `name` its path as given to the dynamic linker.
    `constants` is kept alive until then.
    """
    release_unused()
    watched = ReleaseOnDrop()
    loaded = ctypes.CDLL(name)
    hooks = tuple(_address(loaded[hook]) for hook in IDLE_HOOKS if hasattr(loaded, hook))
    if hooks or constants is not None:  # otherwise the library is not ours
        take, release = (
            _Reference(_address(loaded[f"TVMFFIObject{do}Ref"])) for do in ("Inc", "Dec")
        )
        held = _Held(module.__chandle__(), release, hooks, constants)
        take(held.module)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(constants))
        _held.append(held)
        _tell(hooks, 0)
        weakref.finalize(watched, release_unused).atexit = False
    return watched


def release_unused() -> None:
    """Release the memory of all unreachable libraries."""
    for held in [held for held in _held if _holders(held.module) == 1]:
        try:
            _held.remove(held)
        except ValueError:
            continue
        # A file loaded twice is one library; another thread may be loading it again right now.
        if not _is_used(held.hooks):
            _tell(held.hooks, 1)
            if _is_used(held.hooks):
                _tell(held.hooks, 0)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(held.constants))
        held.release(held.module)


def _tell(hooks: tuple[int, ...], idle: int) -> None:
    for address in hooks:
        _Hook(address)(idle)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _is_used(hooks: tuple[int, ...]) -> bool:
    return any(held.hooks == hooks for held in _held)


def _holders(module: int) -> int:
    """Strong reference count of an FFI object, the low 32 bits of its header in the FFI ABI."""
    return ctypes.c_uint32.from_address(module).value
