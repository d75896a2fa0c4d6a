"""The attribute `implementation` of a call: which lowering of its operator the call uses.

    R.nn.conv2d(x, w, padding=1, implementation="winograd(tile=4)")

The text names an implementation of the operator's row and its parameters, or "default". If a call
does not have the attribute, the pass `choose_implementations` decides.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import msgspec

from blockwright import ir
from blockwright.ops.row import Attrs, Implementation, OpContext, OpRow, Parameters
from blockwright.support import GraphError

ATTRIBUTE = "implementation"
DEFAULT = "default"
"""Name of the implementation `OpRow.lower`."""


class Choice(NamedTuple):
    """An implementation other than the default, with its parameters."""

    implementation: Implementation[Any]
    parameters: Parameters

    def __str__(self) -> str:
        return text_of(self.implementation.name, self.parameters)


def text_of(name: str, parameters: Parameters) -> str:
    """The value of the attribute: `winograd(tile=4)`."""
    given = msgspec.structs.asdict(parameters)
    listed = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{name}({listed})" if listed else name


def implementations_text(row: OpRow) -> str:
    """All implementations of an operator, for messages: `default, winograd(tile=2|4|6)`."""
    return ", ".join([DEFAULT, *map(_signature, row.implementations)])


def chosen(row: OpRow, attrs: Attrs) -> Choice | None:
    """The implementation that a call names; None for the default and for calls that name none.

    Raises: GraphError BW418: the operator has no such implementation or parameters.
    """
    text: object = attrs.get(ATTRIBUTE)
    if text is None or text == DEFAULT:
        return None
    parsed = _parsed(text) if isinstance(text, str) else None
    if parsed is None:
        raise _error(row, text, "it must have the form 'name(parameter=value, ...)'")
    name, given = parsed
    found = next((each for each in row.implementations if each.name == name), None)
    if found is None:
        wrong = "the default has no parameters" if name == DEFAULT else f"there is no {name!r}"
        raise _error(row, text, wrong)
    fields = {field.name: field for field in msgspec.structs.fields(found.parameters)}
    for key in given:
        if key not in fields:
            raise _error(row, text, f"{name} has no parameter {key!r}")
    for field in fields.values():
        if field.required and field.name not in given:
            raise _error(row, text, f"{name} needs the parameter {field.name!r}")
    values = {key: _converted(row, text, fields[key], value) for key, value in given.items()}
    return Choice(found, found.parameters(**values))


def _converted(row: OpRow, text: object, field: msgspec.structs.FieldInfo, value: object) -> Any:
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError:
        wrong = f"{field.name}={value!r} is not {_kind_text(field.type)}"
        raise _error(row, text, wrong) from None


def check_implementation(
    row: OpRow, ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs
) -> Choice | None:
    """Return what `chosen` does; also raise if the implementation does not apply to the call.

    Raises: GraphError BW419: it does not apply.
    """
    choice = chosen(row, attrs)
    if choice is not None:
        reason = choice.implementation.why_not(ctx, infos, attrs, choice.parameters)
        if reason:
            raise GraphError(
                f"{row.name}: {choice} does not apply: {reason}",
                code="BW419",
                help=f"omit {ATTRIBUTE}= to let the compiler choose",
            )
    return choice


def lower_call(
    row: OpRow, ctx: OpContext, infos: Sequence[ir.TensorInfo], attrs: Attrs
) -> ir.PrimFunc:
    """The tensor program of a call by the implementation that it names, or by the default.

    Arguments: `attrs` includes the defaults of the row.
    Raises: GraphError: BW418 and BW419 as above; errors of the lowering.
    """
    choice = check_implementation(row, ctx, infos, attrs)
    if choice is not None:
        return choice.implementation.lower(ctx, infos, attrs, choice.parameters)
    assert row.lower is not None, f"{row.name} has no tensor program"
    return row.lower(ctx, infos, attrs)


def _parsed(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of `name` or `name(key=literal, ...)`; None for other text."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return node.id, {}
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
            return None
        given = {key.arg: ast.literal_eval(key.value) for key in node.keywords if key.arg}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return (node.func.id, given) if len(given) == len(node.keywords) else None


def _signature(implementation: Implementation[Any]) -> str:
    fields = msgspec.structs.fields(implementation.parameters)
    listed = ", ".join(f"{field.name}={_kind_text(field.type)}" for field in fields)
    return f"{implementation.name}({listed})" if listed else implementation.name


def _kind_text(kind: Any) -> str:
    """The values that a parameter accepts: the type, or the literals."""
    if get_origin(kind) is Literal:
        return "|".join(map(repr, get_args(kind)))
    return getattr(kind, "__name__", str(kind)) if get_origin(kind) is None else str(kind)


def _error(row: OpRow, text: object, wrong: str) -> GraphError:
    return GraphError(
        f"{row.name}: {ATTRIBUTE}={text!r}: {wrong}",
        code="BW418",
        help=f"implementations of {row.name}: {implementations_text(row)}",
    )
