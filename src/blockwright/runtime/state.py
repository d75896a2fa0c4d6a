"""State: arrays that outlive calls.

An executable owns them, and its functions update them in place. Compiled code takes them as its
last arguments, which the executable passes. They keep their places in memory, so a step of a loop
allocates nothing for them.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.arrays import (
    DLPACK_KINDS,
    as_numpy,
    converted,
    is_number,
    is_numpy,
    is_torch,
    with_dtype,
)
from blockwright.runtime.artefact import StateVariable
from blockwright.runtime.ffi import tvm_ffi
from blockwright.runtime.library import Library
from blockwright.runtime.results import describe
from blockwright.support import StateError
from blockwright.support.uncopied import Uncopied

RANDOM = "$random"
"""The variable of random operators: (seed, position) of their generator, two int64."""

_NONE: Mapping[str, NDArray[Any]] = MappingProxyType({})


class State(Uncopied, Mapping[str, Any]):
    """The variables of an executable's state, by name.

    `state["cache"]` is the array itself: a torch tensor for a model that was imported from PyTorch
    (if torch is loaded when the executable is made), else a NumPy array. It can be read and written
    between calls. `state["cache"] = value` copies a value into it.

    The arrays of a state serve one call at a time: see `StatefulFunction`.
    """

    __slots__ = ("_arrays", "_framework", "_initial", "_lock", "_memory", "_variables")

    def __init__(
        self,
        variables: Sequence[StateVariable] = (),
        initial: Mapping[str, NDArray[Any]] = _NONE,
        framework: str = "",
    ) -> None:
        """Arguments: `initial` are initial values by name, zeros for others; they are not copied.
        `framework` is the package of the arrays; "" for NumPy."""
        self._variables, self._initial, self._framework = variables, initial, framework
        self._lock = threading.Lock()
        self._memory = {v.name: _initialized(v, initial.get(v.name)) for v in variables}
        self._arrays = {name: _shared(a, framework) for name, a in self._memory.items()}

    def __repr__(self) -> str:
        listed = (f"{v.name}: {v.dtype}[{', '.join(map(str, v.shape))}]" for v in self._variables)
        return f"<{type(self).__name__} {', '.join(listed)}>"

    def __len__(self) -> int:
        return len(self._arrays)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __getitem__(self, name: str) -> Any:
        """The array of a variable. Raises: StateError (BW851) if there is none of that name."""
        self._require(name)
        return self._arrays[name]

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def get(self, name: str, default: Any = None) -> Any:
        """The array of a variable, or `default` if there is none of that name."""
        return self._arrays.get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        """Copy a value of the same shape and element type into the array of a variable.

        Raises: StateError (BW851) for another name, shape or element type.
        """
        self._require(name)
        memory = self._memory[name]
        given = _elements(value)
        if given is None or given.shape != memory.shape or given.dtype != memory.dtype:
            kind = describe(value) if given is None else f"{given.dtype.name}{list(given.shape)}"
            raise StateError(
                f"{name!r} of the state is {memory.dtype.name}{list(memory.shape)}, "
                f"the value is {kind}",
                code="BW851",
                help=f"pass an array of this shape and type, or assign to state[{name!r}][...]",
            )
        np.copyto(memory, given)

    def _require(self, name: str) -> None:
        if name not in self._arrays:
            raise StateError(
                f"the state has no variable {name!r}",
                code="BW851",
                help=f"variables: {', '.join(self._arrays) or 'none'}",
            )

    def acquire(self) -> None:
        """Reserve the arrays for one call. Raises: StateError (BW850) if another call has them."""
        if not self._lock.acquire(blocking=False):
            raise StateError(
                "the state is in use by another call",
                code="BW850",
                help="give each thread an executable with a state of its own, exe.copy(), or call "
                "one after the other",
            )

    def release(self) -> None:
        """End the use of the arrays."""
        self._lock.release()

    def reset(self) -> None:
        """Set all variables to their initial values. Raises: StateError (BW850)."""
        self._restore(self._initial)

    def seed(self, seed: int) -> None:
        """Begin the random numbers of a seed. Raises: StateError: BW851 if the model has no random
        operators or the seed does not fit int64, BW850 while a call uses the state."""
        if RANDOM not in self._memory:
            raise StateError(
                "the model has no random operators",
                code="BW851",
                help="seed only models that draw random numbers: those with state['$random']",
            )
        if not -(2**63) <= seed < 2**63:
            raise StateError(
                f"the seed {seed} does not fit int64", code="BW851", help="pass 64 bits at most"
            )
        self.acquire()
        try:
            self._memory[RANDOM][:] = seed, 0
        finally:
            self.release()

    def copy(self) -> Self:
        """A state with arrays of its own, which have the present values.

        Raises: StateError (BW850).
        """
        result = type(self)(self._variables, self._initial, self._framework)
        result._restore(self.values_now())
        return result

    def values_now(self) -> dict[str, NDArray[Any]]:
        """Copies of the present values, as NumPy arrays. Raises: StateError (BW850)."""
        self.acquire()
        try:
            return {name: memory.copy() for name, memory in self._memory.items()}
        finally:
            self.release()

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Restore the present values at the end of a block."""
        before = self.values_now()
        try:
            yield
        finally:
            self._restore(before)

    def _restore(self, values: Mapping[str, NDArray[Any]]) -> None:
        self.acquire()
        try:
            for name, memory in self._memory.items():
                if name in values:
                    np.copyto(memory, values[name])
                else:
                    memory.reshape(-1).view(np.uint8)[...] = 0
        finally:
            self.release()


def _initialized(variable: StateVariable, initial: NDArray[Any] | None) -> NDArray[Any]:
    if initial is None:
        return np.zeros(variable.shape, _dtype(variable.dtype))
    return np.array(initial, _dtype(variable.dtype), order="C").reshape(variable.shape)


def _dtype(name: str) -> np.dtype[Any]:
    if name in DLPACK_KINDS:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return np.dtype(name)


def _shared(array: NDArray[Any], framework: str) -> Any:
    """The memory of an array as an array of a framework, if that is loaded."""
    kind: Any = getattr(sys.modules.get(framework), "Tensor", None) if framework else None
    if kind is None:
        return array
    special = DLPACK_KINDS.get(array.dtype.name)
    tensor = tvm_ffi().from_dlpack(array) if special is None else with_dtype(array, special)
    return converted(tensor, kind)


def _elements(value: Any) -> NDArray[Any] | None:
    """A NumPy view of an array of any framework; None for other values."""
    if is_numpy(value):
        return value
    if is_number(value) or not hasattr(value, "__dlpack__"):
        return None
    plain = value.detach().cpu().resolve_conj().resolve_neg() if is_torch(value) else value
    seen = as_numpy(plain)
    return cast("NDArray[Any]", seen) if is_numpy(seen) else None


def initial_values(library: Library, variables: Sequence[StateVariable]) -> dict[str, NDArray[Any]]:
    """The initial values of variables in a loaded library, which are not zeros."""
    stored = [variable for variable in variables if variable.symbol]
    if not stored:
        return {}
    loaded = ctypes.CDLL(library.name)
    return {variable.name: _mapped(loaded, variable) for variable in stored}


def _mapped(loaded: ctypes.CDLL, variable: StateVariable) -> NDArray[Any]:
    """The initial value of a variable, in the memory of a library, which is never unloaded."""
    dtype = _dtype(variable.dtype)
    size = dtype.itemsize * int(np.prod(variable.shape, dtype=np.int64))
    data = (ctypes.c_uint8 * size).in_dll(loaded, variable.symbol)
    array = np.ctypeslib.as_array(data).view(dtype).reshape(variable.shape)
    array.flags.writeable = False
    return array


class StatefulFunction(Uncopied):
    """A compiled function whose last arguments, before the memory of results, are state.

    One call at a time uses a state. Waiting for the other would let the order of threads decide
    what a model remembers, and would never end if the model calls itself; so it is an error
    (BW850).
    """

    __slots__ = ("_arrays", "_count", "_function", "_state")

    def __init__(
        self, function: NativeFunction, count: int, state: State, names: Sequence[str]
    ) -> None:
        """Arguments: the function takes `count` arguments, then the variables `names`."""
        self._function, self._count, self._state = function, count, state
        self._arrays = tuple(state[name] for name in names)

    def __call__(self, *args: Any) -> Any:
        """Call the function with all arguments but the state."""
        return self.call(args)

    def call(self, args: tuple[Any, ...]) -> Any:
        """Call the function with all arguments but the state, in a tuple.

        Raises: ArgumentError (BW7xx); StateError (BW850) if another call uses the state.
        """
        count = self._count
        self._state.acquire()
        try:
            return self._function.call((*args[:count], *self._arrays, *args[count:]))
        finally:
            self._state.release()

    @property
    def copies(self) -> int:
        """Number of arguments copied so far."""
        return self._function.copies
