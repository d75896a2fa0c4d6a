"""Load isl with ctypes: the shared library, its functions, contexts and errors."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_ulong, c_void_p
from enum import IntEnum
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any

from blockwright.support import OptionError

_HELP = 'pip install "blockwright[prove]"'


class Error(Exception):
    """An isl call failed.

    Attributes:
        spent: whether the call reached the operation limit. The text passed to isl is always well
            formed, so a failure to parse it also means that the limit was reached.
    """

    def __init__(self, why: str, spent: bool) -> None:
        super().__init__(why)
        self.spent = spent


class Dim(IntEnum):
    """Kinds of dimensions, with isl's numbers."""

    PARAM = 1
    OUT = 3
    DIV = 4


ON_ERROR = 1
"""isl's error mode "continue": a failed call returns an error; mode 0 also prints to stderr."""
_QUOTA = 6
"""isl's error kind for a call that reached the operation limit."""


def load(package: str = "islpy", module: str = "_isl") -> ctypes.PyDLL:
    """Load the shared library that contains isl.

    Raises:
        OptionError: BW926 if the package is not installed or does not contain the library.
    """
    spec = find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    result = None if folders is None else PathFinder.find_spec(module, list(folders))
    if result is None or result.origin is None:
        raise OptionError(f"proofs need isl, which {package} contains", code="BW926", help=_HELP)
    return ctypes.PyDLL(result.origin)


def declared(holder: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """Look up a function of a library and declare its types.

    Raises:
        OptionError: BW926 if the library does not export it.
    """
    function = getattr(holder, name, None)
    if function is None:
        raise OptionError(f"the installed islpy does not export {name}", code="BW926", help=_HELP)
    function.restype, function.argtypes = result, arguments
    return function


ISL = load()


@cache
def giving(name: str, operands: int) -> Any:
    """A function on objects that returns an object or text."""
    return declared(ISL, name, c_void_p, *[c_void_p] * operands)


@cache
def answering(name: str, operands: int) -> Any:
    """A function on objects that returns a number, negative on failure."""
    return declared(ISL, name, c_int, *[c_void_p] * operands)


free_text = declared(ctypes.CDLL(None), "free", None, c_void_p)
free_context = declared(ISL, "isl_ctx_free", None, c_void_p)
_last_error = declared(ISL, "isl_ctx_last_error", c_int, c_void_p)
_last_message = declared(ISL, "isl_ctx_last_error_msg", c_char_p, c_void_p)
_reset_error = declared(ISL, "isl_ctx_reset_error", None, c_void_p)
_reset_operations = declared(ISL, "isl_ctx_reset_operations", None, c_void_p)
_set_max_operations = declared(ISL, "isl_ctx_set_max_operations", None, c_void_p, c_ulong)
_set_on_error = declared(ISL, "isl_options_set_on_error", c_int, c_void_p, c_int)
_alloc_context = declared(ISL, "isl_ctx_alloc", c_void_p)


class Context:
    """An isl context, shared by the objects of a proof: memory pool and operation counter.

    Attributes:
        users: the number of live users, the context itself included; the last one frees the isl
            context. (Objects of one reference cycle are finalized in any order, so a reference from
            object to context would not suffice.)
    """

    __slots__ = ("pointer", "users")

    def __init__(self) -> None:
        self.pointer: int = _alloc_context()
        self.users = 1
        _set_on_error(self.pointer, ON_ERROR)

    def leave(self) -> None:
        """Drop one user; free the isl context with the last one."""
        self.users -= 1
        if not self.users:
            free_context(self.pointer)

    __del__ = leave

    def set_max_operations(self, limit: int) -> None:
        """Make calls fail once the counter reaches `limit`; 0 means no limit."""
        _set_max_operations(self.pointer, limit)

    def reset_operations(self) -> None:
        """Reset the operation counter."""
        _reset_operations(self.pointer)

    def reaches(self, operations: int) -> bool:
        """Whether the counter has reached `operations`, by setting it as the limit.

        isl does not expose the counter itself.
        """
        self.set_max_operations(operations)
        value = giving("isl_val_zero", 1)(self.pointer)
        if value is None:
            _reset_error(self.pointer)
            return True
        giving("isl_val_free", 1)(value)
        return False

    def failure(self, name: str) -> Error:
        """The exception for a failed call."""
        spent = _last_error(self.pointer) == _QUOTA or name.endswith("read_from_str")
        message: bytes = _last_message(self.pointer) or b"no reason given"
        _reset_error(self.pointer)
        return Error(f"{name}: {message.decode()}", spent)
