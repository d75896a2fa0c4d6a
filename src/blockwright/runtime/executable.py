"""Callable compiled models; the same class serves a fresh compilation and a loaded artefact."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

import msgspec
from numpy.typing import NDArray

from blockwright.runtime.artefact import (
    ExportedFunction,
    Metadata,
    load_artefact,
    read_metadata,
)
from blockwright.runtime.entry_point import EntryPoint
from blockwright.runtime.library import Library
from blockwright.runtime.memory_plan import MemoryPlan
from blockwright.runtime.profile import Profile
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.shared_libraries import SharedLibrary, open_libraries
from blockwright.runtime.state import State, initial_values
from blockwright.support import ArgumentError, OptionError
from blockwright.support.uncopied import Uncopied

__all__ = ["EntryPoint", "Executable", "MemoryPlan", "load"]


class Executable(Uncopied):
    """A compiled model: one function, or several that share weights.

    `exe(*inputs)` calls the main function: the one named "main", or the only one. `exe["decode"]`
    is the function of that name; `exe.names()` lists them all. See `EntryPoint` for calls.

    Attributes:
        metadata: the description of the library; of several targets, of the code that runs.
        state: the arrays that functions update and that outlive calls, by name (see `State`); all
            functions share them. Empty for most models.
    """

    def __init__(
        self,
        library: Library,
        metadata: Metadata,
        initial: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Arguments: `initial` are values of the state by name; zeros for others."""
        self.metadata = metadata
        self._library = library
        self._functions = {f.name: f for f in metadata.functions}
        framework = next((f.framework for f in metadata.functions if f.state), "")
        self._bind(State(metadata.state, initial or {}, framework))

    def _bind(self, state: State) -> None:
        """Use a state in all calls."""
        self.state = state
        self._entries: dict[str, EntryPoint] = {}
        self._main = self[self.metadata.main] if self.metadata.main else None
        # The fast path of `__call__`: positional arrays that need no preparation.
        self._direct, self._count = (None, 0) if self._main is None else self._main.direct

    def names(self) -> tuple[str, ...]:
        """Names of the functions."""
        return tuple(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __getitem__(self, name: str) -> EntryPoint:
        """The function of that name. Raises: ArgumentError (BW721) if there is none."""
        if name not in self._functions:
            raise ArgumentError(
                f"the model has no function {name!r}",
                code="BW721",
                help=f"functions: {', '.join(self._functions)}",
            )
        if name not in self._entries:
            self._entries[name] = self._entry_point(self._functions[name])
        return self._entries[name]

    def _entry_point(self, signature: ExportedFunction) -> EntryPoint:
        return EntryPoint(self._library, self.metadata, signature, self.state)

    def reset_state(self) -> None:
        """Set the state to its initial values. Raises: StateError (BW850) while a call uses it."""
        self.state.reset()

    def seed(self, seed: int) -> None:
        """Begin the random numbers of a seed, an integer of 64 bits; new executables have seed 0.

        Raises: StateError: BW851 if the model has no random operators, BW850 while a call uses the
        state.
        """
        self.state.seed(seed)

    def copy(self) -> Self:
        """An executable with the same code and weights, and a state of its own.

        It starts with the present values; `reset_state` sets the initial ones. Raises: StateError
        (BW850) while a call uses the state.
        """
        result = object.__new__(type(self))
        result.__dict__.update(self.__dict__)
        result._bind(self.state.copy())
        return result

    @property
    def main(self) -> EntryPoint:
        """The main function. Raises: ArgumentError (BW721) if the model has none."""
        if self._main is None:
            first = next(iter(self._functions), "")
            raise ArgumentError(
                f"none of the model's functions ({', '.join(self._functions)}) is named main",
                code="BW721",
                help=f'call one by name: exe["{first}"](…)',
            )
        return self._main

    @property
    def target(self) -> str:
        """The target whose code runs: of several, the one that was chosen for this processor."""
        return self.metadata.target_name

    def __repr__(self) -> str:
        functions = ", ".join(f.describe() for f in self._functions.values())
        return f"<{type(self).__name__} {functions}>"

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Call the main function; see `EntryPoint.__call__`."""
        direct = self._direct
        if direct is not None and not named and out is None and len(inputs) == self._count:
            return direct(inputs)
        return self.main(*inputs, out=out, **named)

    @property
    def signature(self) -> ExportedFunction:
        """Parameters, results and sizes of the main function."""
        return self.main.signature

    def profile(self, *inputs: Any, repeat: int = 5, roofline: Roofline | None = None) -> Profile:
        """Time every kernel of a call of the main function; see `EntryPoint.profile`."""
        return self.main.profile(*inputs, repeat=repeat, roofline=roofline)

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan of the main function; see `MemoryPlan`."""
        return self.main.memory_plan

    def measure_memory(self, *inputs: Any) -> int:
        """Bytes that a call of the main function takes; see `EntryPoint.measure_memory`."""
        return self.main.measure_memory(*inputs)

    @property
    def copies(self) -> int:
        """Arguments and results copied so far by calls of any function, because compiled code
        cannot use their layout."""
        return sum(entry.copies for entry in self._entries.values())


def load(
    path: str | os.PathLike[str],
    *,
    libraries: Mapping[str, str] | None = None,
    target: str | None = None,
    verify: Literal["full", "head"] = "full",
) -> Executable:
    """Load a saved artefact. Needs the base install only; imports no compiler.

    Shared libraries that the code calls are opened first: their names and versions are in the
    artefact's metadata. A process holds one copy of each.

    Arguments: `libraries` maps the name of a library to its file, where it is not the usual one.
    Of an artefact for several targets, the code of the best that this processor supports is chosen
    once, here; `target` names another one. `target` of the result says which it is.
    The whole file is read once, to compare it with its checksum; with `verify="head"` only what
    precedes the weights is, and weights are read when they are used.
    Raises: ArtefactError (BW80x) when the file is damaged, newer, or for another processor, or when
    a library that it calls is missing (BW808) or has another version (BW809); BW846 when it has no
    code for `target`. OptionError (BW928) for another value of `verify`.
    """
    if verify not in ("full", "head"):
        raise OptionError(
            f"verify must be one of full, head, got {verify!r}",
            code="BW928",
            help='write bw.load("model.bwx", verify="head")',
        )
    metadata = read_metadata(path)
    if "libraries" in metadata.extra:
        shared = msgspec.convert(metadata.extra["libraries"], list[SharedLibrary])
        open_libraries(shared, libraries)
    artefact = load_artefact(path, target=target, verify=verify)
    initial = initial_values(artefact.library, artefact.metadata.state)
    return Executable(artefact.library, artefact.metadata, initial)
