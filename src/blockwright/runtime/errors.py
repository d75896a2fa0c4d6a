"""Translate errors raised by compiled code to Blockwright's exception classes.

Compiled code can raise only a kind and a message through the FFI. Its messages start with a code,
"BW704: ...", and may end with a line "help: ...". `support/codes.py` lists the codes (BW7xx).
"""

from __future__ import annotations

import re

from blockwright.support import (
    ArgumentError,
    ArtefactError,
    BlockwrightError,
    BuildError,
    InterpretError,
    coded_message,
)

FFI_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
    AttributeError,
    KeyError,
    IndexError,
    AssertionError,
)
"""Exception classes of the FFI, by error kind; unknown kinds become RuntimeError."""

_ARGUMENT = re.compile(r"BW\d+: argument (\d+) ")
_DLPACK_TYPE = re.compile(r"\b(\w+) \((\d+) bits, (\d+) lanes\)")
_FAMILIES: dict[str, type[BlockwrightError]] = {
    "BW6": BuildError,
    "BW7": ArgumentError,
    "BW75": InterpretError,
    "BW8": ArtefactError,
}


def error_code(error: BaseException) -> str | None:
    """The code in the message of an error; None if it has none."""
    if isinstance(error, BlockwrightError):
        return error.code
    result = coded_message(str(error))
    return result[0] if result else None


def argument_of(error: BaseException) -> int | None:
    """The position of the argument that an error of compiled code is about; None if of another."""
    found = _ARGUMENT.match(str(error))
    return int(found[1]) - 1 if found else None


def _type_name(found: re.Match[str]) -> str:
    """The usual name of an element type, from the kind, bits and lanes in a message."""
    kind, bits, lanes = found.groups()
    whole = kind == "bool" or any(letter.isdigit() for letter in kind)
    name = kind if whole else f"{kind}{bits}"
    return name if lanes == "1" else f"{name}x{lanes}"


def translate(error: BaseException) -> BaseException:
    """Convert an error with a coded message to a Blockwright error; return others unchanged."""
    result = None if isinstance(error, BlockwrightError) else coded_message(str(error))
    if result is None:
        return error
    code, message, remedy = result
    message = _DLPACK_TYPE.sub(_type_name, message)
    family = _FAMILIES.get(code[:4]) or _FAMILIES.get(code[:3], BlockwrightError)
    return family(message, code=code, help=remedy)
