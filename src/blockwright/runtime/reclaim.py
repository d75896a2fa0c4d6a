"""Gives back the memory of libraries that nobody can call any more.

Code stays where it is: results that outlive their function are freed by it, and the threads of the
pool run in that of the library loaded first. What goes back are constants that a library reads
outside of itself, its temporary memory, and the memory of results that waits for the next call.

The FFI counts who holds a library: its module object, and each function made of it, wherever those
are kept. A library is left alone until the count says that only this file holds it. That is looked
at when a `Library` goes, which functions of this package keep, and at each later loading, for such
as were held longer by somebody else.
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
"""What libraries export, in C: `void hook(int32_t idle)`. With 1 memory that waits goes back, now
and when results are freed later; with 0 it waits again. Libraries of earlier versions lack them."""

_held: list[_Held] = []
"""No lock: a collection of garbage comes here from anywhere. Who removes an entry has its work."""


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """A loaded library.

    Attributes:
        module: address of its FFI object, of which this is a reference.
        release: gives up such a reference.
        hooks: addresses of its hooks.
        constants: what it reads outside of itself. One reference to it is counted here by hand, so
            that it stays when the interpreter ends before the threads that call the library.
    """

    module: int
    release: Callable[[int], object]
    hooks: tuple[int, ...]
    constants: object


class ReleaseOnDrop:
    """When this is dropped, memory goes back. To be dropped after what holds the library."""

    __slots__ = ("__weakref__",)


def watch(module: Any, name: str, constants: object = None) -> ReleaseOnDrop:
    """Sees to it that the memory of a library goes back when nobody can call it any more.

    Arguments: `module` is its FFI object, `name` what the loader knows it by. `constants` is kept
    until then.
    """
    release_unused()
    watched = ReleaseOnDrop()
    loaded = ctypes.CDLL(name)
    hooks = tuple(_address(loaded[hook]) for hook in IDLE_HOOKS if hasattr(loaded, hook))
    if hooks or constants is not None:  # else it is none of ours
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
    """Returns the memory of all libraries that nobody holds any more."""
    for held in [held for held in _held if _holders(held.module) == 1]:
        try:
            _held.remove(held)
        except ValueError:
            continue
        # A file that was loaded twice is one library; it may be loaded again just now.
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
    """Strong references to an FFI object: the lower half of its first word, by the FFI's ABI."""
    return ctypes.c_uint32.from_address(module).value
