"""Translate errors raised by compiled code to Blockwright's exception classes.

Compiled code can raise only a kind and a message through the FFI. Its messages start with a code,
"BW704: ...", and may end with a line "help: ...". The codes of calls:

- BW701 wrong number of arguments, BW702 not a tensor or number of the expected kind
- BW703 data type, BW704 rank or shape, BW705 device
- BW706 not contiguous or under-aligned (callers of this package never see it: the call is repeated
  with copies), BW707 a read-only array where a result must be written
- BW708 a symbolic size or an index outside its range, BW709 two arguments disagree on a symbolic
  size
- BW719 a guard of an exported program does not hold
- BW710 thread-pool settings, BW712 a failed assertion, BW720 out of memory
- memory passed for results is checked like an argument that is written, named "result 1 `out`"
- in sanitizer builds: BW713 an index outside its buffer, BW714 NaN written, BW715 an element read
  before it is written, BW717 a buffer with a negative extent
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
