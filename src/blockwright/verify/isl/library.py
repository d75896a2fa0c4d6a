"""isl as a library: the file that holds it, its functions, contexts and errors."""

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
    """A call failed.

    Attributes:
        spent: whether it ended at the limit of operations. Text is well formed when it is written,
            so reading it fails for no other reason.
    """

    def __init__(self, why: str, spent: bool) -> None:
        super().__init__(why)
        self.spent = spent


class Dim(IntEnum):
    """Kinds of dimensions, as isl numbers them."""

    PARAM = 1
    OUT = 3
    DIV = 4


ON_ERROR = 1
"""What isl does about errors: nothing but to fail; 0 is to write them to stderr as well."""
_QUOTA = 6
"""The kind of error of a call that ended at the limit of operations."""


def load(package: str = "islpy", module: str = "_isl") -> ctypes.PyDLL:
    """The file that holds isl.

    Raises:
        OptionError: BW926 when the package is not installed, or brings no such file along.
    """
    spec = find_spec(package)
    folders = None if spec is None else spec.submodule_search_locations
    result = None if folders is None else PathFinder.find_spec(module, list(folders))
    if result is None or result.origin is None:
        raise OptionError(
            f"proofs need isl, which {package} brings along", code="BW926", help=_HELP
        )
    return ctypes.PyDLL(result.origin)


def declared(holder: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library.

    Raises:
        OptionError: BW926 when the library does not export it.
    """
    function = getattr(holder, name, None)
    if function is None:
        raise OptionError(
            f"the islpy that is installed does not export {name}", code="BW926", help=_HELP
        )
    function.restype, function.argtypes = result, arguments
    return function


ISL = load()


@cache
def giving(name: str, operands: int) -> Any:
    """A function of objects that gives an object, or text."""
    return declared(ISL, name, c_void_p, *[c_void_p] * operands)


@cache
def answering(name: str, operands: int) -> Any:
    """A function of objects that gives a number: less than 0 when it failed."""
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
    """What the objects of a proof share: memory that isl keeps at hand, the count of operations.

    Attributes:
        users: itself and the objects that are alive; the last one frees it. (Those of one cycle are
            finalized in any order: a reference from object to context would not be enough.)
    """

    __slots__ = ("pointer", "users")

    def __init__(self) -> None:
        self.pointer: int = _alloc_context()
        self.users = 1
        _set_on_error(self.pointer, ON_ERROR)

    def leave(self) -> None:
        """One user fewer."""
        self.users -= 1
        if not self.users:
            free_context(self.pointer)

    __del__ = leave

    def set_max_operations(self, most: int) -> None:
        """From this count on calls fail; 0 for no limit."""
        _set_max_operations(self.pointer, most)

    def reset_operations(self) -> None:
        """Count from 0."""
        _reset_operations(self.pointer)

    def reaches(self, operations: int) -> bool:
        """Whether there were as many operations, which becomes the limit: isl tells no number."""
        self.set_max_operations(operations)
        value = giving("isl_val_zero", 1)(self.pointer)
        if value is None:
            _reset_error(self.pointer)
            return True
        giving("isl_val_free", 1)(value)
        return False

    def failure(self, name: str) -> Error:
        """What is said of a call that failed."""
        spent = _last_error(self.pointer) == _QUOTA or name.endswith("read_from_str")
        message: bytes = _last_message(self.pointer) or b"no reason given"
        _reset_error(self.pointer)
        return Error(f"{name}: {message.decode()}", spent)
