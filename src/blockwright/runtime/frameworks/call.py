"""What compiled code states about a call of a framework's operator, and what all calls share.

    R.call_dps_library("torch.ops.aten.mode.default", (x,), out_sinfo=[…], call='{…}', size0=n)

The function gets its tensors, those of its results, the text of an `OperatorCall`, then numbers. If
a size of a result is known only when the operator has run, the call is an `R.call_packed`, which
returns the results; their sizes follow in one int64 tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from blockwright.support import BlockwrightError


class OperatorCall(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One call of an operator.

    Attributes:
        inputs: how many tensors it takes.
        args, named: its arguments. A dict with one key stands for a value that JSON lacks:
            {"input": 0} is the first tensor, {"number": 0} the first number.
        functional: the operator changes arguments, and is called on copies of them, which are
            results too.
        late: for a call that returns its results, which of them have sizes known only then.
    """

    inputs: int
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = {}
    functional: bool = False
    late: tuple[bool, ...] | None = None

    def text(self) -> str:
        """The text that compiled code passes."""
        return msgspec.json.encode(self).decode()


def marked(value: Any) -> tuple[str, Any] | None:
    """The key and content of a dict that stands for another value."""
    if not isinstance(value, dict):
        return None
    ((key, content),) = cast("dict[str, Any]", value).items()
    return key, content


class CallArguments(msgspec.Struct, frozen=True):
    """The packed arguments of one call, in their groups."""

    call: OperatorCall
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    numbers: Sequence[Any]


def reader() -> Callable[[Sequence[Any]], CallArguments]:
    """A function that takes the packed arguments of calls apart; it reads each text once."""
    known: dict[str, OperatorCall] = {}

    def read(values: Sequence[Any]) -> CallArguments:
        at = next(k for k, value in enumerate(values) if isinstance(value, str))
        text = str(values[at])
        call = known.get(text)
        if call is None:
            call = known[text] = msgspec.json.decode(text, type=OperatorCall)
        return CallArguments(
            call, values[: call.inputs], values[call.inputs : at], values[at + 1 :]
        )

    return read


def failed(operator: str, error: Exception) -> RuntimeError:
    """The error of a call whose operator raised one, for the calling code."""
    if isinstance(error, BlockwrightError):
        return RuntimeError(f"{error.code}: {error.message}\nhelp: {error.help}")
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    said = f"{type(error).__name__}: {' '.join(lines[:3])}".rstrip(": ")
    return RuntimeError(
        f"BW726: the operator {operator} failed: {said}\n"
        "help: pass arguments that the operator accepts"
    )


def mismatch(operator: str, what: str) -> RuntimeError:
    """The error of a call whose results are not what the exported model states."""
    return RuntimeError(
        f"BW727: the operator {operator} returned {what}\n"
        "help: correct its implementation, or the one for fake tensors (register_fake)"
    )
