"""Function attributes with a fixed meaning: names, value checks and normalization."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from blockwright.ir.expr import IntImm
from blockwright.ir.function import PrimFunc

LOWER_BOUND, UPPER_BOUND = "tir_var_lower_bound", "tir_var_upper_bound"
NOALIAS = "tir.noalias"
FP_CONTRACT, NNAN = "tir.fp_contract", "tir.nnan"
IS_PRIVATE = "tir.is_private"
IS_HOST = "tir.is_host"
IS_SCHEDULED = "tir.is_scheduled"
IS_VIEW = "tir.view"
IS_LIBRARY = "tir.is_library"
NUM_OUTPUTS = "num_outputs"
TARGET = "target"
"""The target that a program is compiled for, where it is not that of the module."""

LATE_RESULTS = "tir.late_results"
"""Results that the program allocates itself when it knows their sizes, with `result_memory`: name
of the handle → (element type, sizes as text)."""

IN_PLACE = "tir.in_place"
"""Results that callers may compute in the memory of an operand: position → that of the operand."""

STATE = "state"
"""Last parameters of a graph function that are state: parameter → variable of the state."""

WORKSPACES = "tir.workspaces"
"""Number of last buffer parameters that are temporary memory, aligned to 64 bytes by the caller."""

INDEX_PARAMS = "tir.index_params"
"""Names of the scalar parameters that are indices, in a program that is being lowered: passes
change what domains and shapes use."""

OBJECT_PARAMS = "tir.object_params"
"""Parameters of a host program that are FFI values: name → the kind, "object" or "function"."""

OBJECT_RESULTS = "tir.object_results"
"""Parameters of a host program that are slots of FFI values that it returns: name → position among
all results."""

CALL_DEPTH = "tir.call_depth"
"""Name of the parameter that counts the active calls of functions that call each other."""

IS_CLOSURE = "tir.is_closure"
"""Host programs that are called through closures: they have an entry even if they are private."""

BOUND_ATTRS = (UPPER_BOUND, LOWER_BOUND)
"""Declared bounds of symbolic sizes: map from symbol name to integer."""

NUMERIC_ATTRS = (FP_CONTRACT, NNAN)
"""Attributes that relax floating-point semantics of the generated code."""

_FLAGS = (NOALIAS, NNAN)
_NUMBERS = (*BOUND_ATTRS, NUM_OUTPUTS)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
Problem = tuple[str, str, str]


def kernel_attrs(func: PrimFunc) -> dict[str, Any]:
    """The attributes that all programs of one kernel have in common, where they differ from their
    default: how floating-point numbers are computed, and the target."""
    result = {key: func.attrs[key] for key in (*NUMERIC_ATTRS, TARGET) if func.attrs.get(key)}
    if result.get(FP_CONTRACT) == "on":
        del result[FP_CONTRACT]
    return result


def attribute_problems(attrs: Mapping[str, Any]) -> list[Problem]:
    """Code, text and help for every function attribute with an invalid value."""
    problems = [p for key in BOUND_ATTRS for p in _bound_problems(key, attrs.get(key, {}))]
    if not problems:
        problems += _contradictions(attrs)
    count: Any = attrs.get(NUM_OUTPUTS, 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        problems.append(
            (
                "BW252",
                f"the attribute num_outputs is {count!r}, which is not a number of outputs",
                "write how many of the last buffers are results",
            )
        )
    for key in _FLAGS:
        if not isinstance(attrs.get(key, True), bool):
            problems.append(
                (
                    "BW252",
                    f"the attribute {key} is {attrs[key]!r}, which is neither True nor False",
                    f'write {{"{key}": True}}',
                )
            )
    contract: Any = attrs.get(FP_CONTRACT, "on")
    if contract not in ("on", "off"):
        problems.append(("BW620", f"tir.fp_contract is {contract!r}", 'use "on" or "off"'))
    return problems


def _bound_problems(key: str, bounds: Any) -> list[Problem]:
    remedy = f'write {{"{key}": {{"n": 1024}}}}'
    if not isinstance(bounds, Mapping):
        text = f"the attribute {key} is {bounds!r}, not a map from symbol names to integers"
        return [("BW252", text, remedy)]
    wrong = {
        name: value
        for name, value in cast("Mapping[Any, Any]", bounds).items()
        if not _is_bound(name, value)
    }
    return [
        (
            "BW252",
            f"{key} of {name!r} is {value!r}; a bound maps a symbol name to an integer",
            remedy,
        )
        for name, value in wrong.items()
    ]


def _is_bound(name: Any, value: Any) -> bool:
    number = isinstance(value, int) and not isinstance(value, bool)
    return isinstance(name, str) and number and _LEAST <= value <= _MOST


def _contradictions(attrs: Mapping[str, Any]) -> list[Problem]:
    upper, lower = (attrs.get(key, {}) for key in BOUND_ATTRS)
    return [
        (
            "BW252",
            f"{name} is declared to be at least {lower[name]} and at most {upper[name]}",
            "declare a non-empty range",
        )
        for name in upper
        if lower.get(name, upper[name]) > upper[name]
    ]


def unknown_bounds(attrs: Mapping[str, Any], symbols: Iterable[str]) -> list[Problem]:
    """One problem for every declared bound that names no symbol of the function."""
    known = sorted(set(symbols))
    names = {name for key in BOUND_ATTRS for name in attrs.get(key, {})} - set(known)
    listed = ", ".join(known) or "none"
    return [
        (
            "BW252",
            f"a bound is declared for {name}, which is not a symbol of the function",
            f"its symbols: {listed}",
        )
        for name in sorted(names)
    ]


def plain_attributes(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as the printer writes them.

    Counts and bounds given as `T.int64(5)` become plain integers; flags given as `T.bool(True)`
    become plain booleans.
    """
    return {
        key: _truth(value) if key in _FLAGS else _plain(value) if key in _NUMBERS else value
        for key, value in attrs.items()
    }


def _truth(value: Any) -> Any:
    number = value.value if isinstance(value, IntImm) else value
    return bool(number) if isinstance(number, int) and number in (0, 1) else value


def _plain(value: Any) -> Any:
    if isinstance(value, IntImm) and not value.dtype.is_bool:
        return value.value
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in cast("dict[Any, Any]", value).items()}
    return value
