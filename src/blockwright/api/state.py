"""State of graph modules: parameters of public functions that the executable keeps.

    R.func_attr({"state": {"total": "sum"}})
    I.module_attrs({"state": {"sum": R.const([0.0, 1.0], "float32")}})

The parameter `total` is the variable "sum", which begins with these values, or else with zeros.
Such parameters are the last ones of their function. All functions share the variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from blockwright import ir
from blockwright.ir.attributes import STATE
from blockwright.runtime.artefact import StateVariable
from blockwright.support import ValidationError


def variables(module: ir.IRModule) -> tuple[StateVariable, ...]:
    """The variables of a module's functions, in order.

    Raises: ValidationError (BW252) for attributes that do not declare state, as the module says.
    """
    result: dict[str, StateVariable] = {}
    for each in _declared(module):
        known = result.setdefault(each.variable.name, each.variable)
        if known != each.variable:
            raise _invalid(
                f"the state {known.name!r} is {_text(known)}, but {_text(each.variable)} in "
                f"{each.function}",
                "declare it with the same shape and type in all functions",
            )
    values: Any = module.attrs.get(STATE, {})
    if not isinstance(values, Mapping):
        raise _invalid(f"the module attribute {STATE} must map variables to arrays", _WRITE)
    for name, value in cast("Mapping[Any, Any]", values).items():
        _check_value(name, value, result)
    return tuple(result.values())


def initial_state(module: ir.IRModule) -> dict[str, NDArray[Any]]:
    """Copies of the initial values that are not zeros, by variable."""
    values: Mapping[str, Any] = module.attrs.get(STATE, {})
    arrays = {name: _array(value) for name, value in values.items()}
    return {name: a.copy() for name, a in arrays.items() if not _is_zero(a)}


def united_state(modules: Iterable[ir.IRModule]) -> dict[str, Any]:
    """Initial values of several modules. Raises: ValidationError BW252 if two of a name differ."""
    result: dict[str, Any] = {}
    for module in modules:
        for name, value in module.attrs.get(STATE, {}).items():
            known = result.setdefault(name, value)
            if known is not value and _array(known).tobytes() != _array(value).tobytes():
                raise _invalid(
                    f"two modules give the state {name!r} different initial values",
                    "a variable has one value; give the other variable another name",
                )
    return result


def stored_state(
    known: Sequence[StateVariable], values: Mapping[str, NDArray[Any]]
) -> tuple[tuple[StateVariable, ...], dict[str, NDArray[Any]]]:
    """Variables whose values are stored in a library, and the values by symbol."""
    result: list[StateVariable] = []
    stored: dict[str, NDArray[Any]] = {}
    for number, variable in enumerate(known):
        value, symbol = values.get(variable.name), ""
        if value is not None and not _is_zero(value):
            symbol = f"__bw_state_{number}"
            stored[symbol] = np.ascontiguousarray(value)
        result.append(msgspec.structs.replace(variable, symbol=symbol))
    return tuple(result), stored


_WRITE = 'write R.func_attr({"state": {"parameter": "variable"}}) for the last parameters'


class _Declaration(NamedTuple):
    function: str
    variable: StateVariable


def _declared(module: ir.IRModule) -> Iterator[_Declaration]:
    for name, function in module.functions.items():
        if not isinstance(function, ir.GraphFunction) or STATE not in function.attrs:
            continue
        given: Any = function.attrs[STATE]
        named = isinstance(given, Mapping) and all(
            isinstance(v, str) for v in cast("Mapping[Any, Any]", given).values()
        )
        if not named:
            raise _invalid(f"the attribute {STATE} of {name} must map parameters to names", _WRITE)
        if "global_symbol" not in function.attrs:
            raise _invalid(f"{name} is private, and its callers pass its arguments", _WRITE)
        mapping = cast("Mapping[Any, str]", given)
        last = function.params[len(function.params) - len(mapping) :]
        if {p.name for p in last} != set(mapping) or len(set(mapping.values())) != len(mapping):
            raise _invalid(
                f"the state of {name} must be its last parameters, each another variable", _WRITE
            )
        for param in last:
            yield _Declaration(name, _variable(mapping[param.name], param, name))


def _variable(name: str, param: ir.GraphVar, function: str) -> StateVariable:
    info = param.info
    shape = info.shape if isinstance(info, ir.TensorInfo) else None
    sizes = [ir.const_int(size) for size in shape or ()]
    known = [size for size in sizes if size is not None]
    if shape is None or len(known) < len(sizes) or param.tensor_info.dtype is None:
        raise _invalid(
            f"the state {param.name} of {function} is {info!r}",
            "state has an element type and sizes that are numbers",
        )
    return StateVariable(name, param.tensor_info.dtype.name, tuple(known))


def _check_value(name: Any, value: Any, known: Mapping[str, StateVariable]) -> None:
    if name not in known:
        raise _invalid(
            f"the state {name!r} is no variable of a function",
            f"variables: {', '.join(known) or 'none'}",
        )
    array, variable = _array(value), known[name]
    if (array.shape, array.dtype.name) != (variable.shape, variable.dtype):
        raise _invalid(
            f"the initial value of the state {name!r} is {array.dtype.name}{list(array.shape)}, "
            f"the variable {_text(variable)}",
            "pass an array of its shape and type",
        )


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.data if isinstance(value, ir.Constant) else value)


def _is_zero(array: NDArray[Any]) -> bool:
    """Whether all bits are 0."""
    return not np.ascontiguousarray(array).reshape(-1).view(np.uint8).any()


def _text(variable: StateVariable) -> str:
    return f"{variable.dtype}{list(variable.shape)}"


def _invalid(text: str, help: str) -> ValidationError:
    return ValidationError(text, code="BW252", help=help)
