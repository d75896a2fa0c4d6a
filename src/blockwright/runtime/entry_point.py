"""Functions of compiled models, callable with the arguments of the imported model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.artefact import ExportedFunction, Metadata
from blockwright.runtime.inputs import InputTree
from blockwright.runtime.library import Library
from blockwright.runtime.memory_plan import MemoryPlan
from blockwright.runtime.memory_use import peak_bytes
from blockwright.runtime.profile import Profile
from blockwright.runtime.results import flatten, unflatten
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.state import State, StatefulFunction
from blockwright.runtime.stored_forms import StoredForms
from blockwright.support import ArgumentError, OptionError
from blockwright.support.uncopied import Uncopied

_OUT = "`out=` is memory for the results; pass the parameter `out` by position"


class EntryPoint(Uncopied):
    """A function of a compiled model.

    `f(*inputs)` returns the model's own output structure, in the framework of the first tensor
    argument. For a function without inputs it is the framework that the model was imported from if
    that is loaded, else NumPy.
    `f(*inputs, out=...)` writes the results into arrays of the caller and allocates none.
    Inputs are either the tensors in a flat sequence, or the nested arguments of the imported model,
    with the same values for arguments that are not tensors.
    A parameter that the function updates in place (`signature.parameters[i].written`) is written
    where the caller keeps it. A result that is such a parameter is the argument itself.
    The state of the executable (`signature.state`) is not an argument; a result that is a variable
    of the state is a copy, which later calls do not change.

    Attributes:
        signature: parameters, results and ranges of sizes.
        metadata: the description of the whole library.
    """

    def __init__(
        self,
        library: Library,
        metadata: Metadata,
        signature: ExportedFunction,
        state: State | None = None,
    ) -> None:
        """Arguments: `state` are the variables that `signature.state` refers to."""
        self.metadata = metadata
        self.signature = signature
        self._library = library
        self._state = State() if state is None else state
        parameters, results = signature.parameters, signature.results
        self._function = self._with_state(library.function(signature.name), library)
        self._run = self._function.call
        self._count = len(parameters)
        self._forms = StoredForms(parameters, results)
        self._usual = self._forms.usual
        self._updated = dict(signature.updated)
        tree = signature.outputs_tree
        self._simple = tree in (None, 0) and not self._updated
        inputs = signature.inputs_tree
        self._inputs = None if inputs is None else msgspec.convert(inputs, InputTree)
        self._direct = self._usual and self._simple and self._inputs is None

    def _with_state(
        self, code: Callable[..., Any], library: Library, results: bool = True
    ) -> NativeFunction | StatefulFunction:
        """The function that passes the state to code of this signature.

        Arguments: `results` is whether the code takes memory for the results.
        """
        signature = self.signature
        taken = (*signature.parameters, *signature.state)
        function = NativeFunction(
            code,
            signature.name,
            [p.state or p.name for p in taken],
            [position for position, p in enumerate(taken) if p.written],
            [r.name for r in signature.results if not r.is_object] if results else (),
            library,
            signature.framework,
            updates=any(p.written for p in taken),
            objects=[k for k, p in enumerate(taken) if p.is_object],
        )
        if not signature.state:
            return function
        names = [p.state for p in signature.state]
        return StatefulFunction(function, len(signature.parameters), self._state, names)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.signature.describe()}>"

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Call the function. Keyword arguments are matched to parameter names.

        Arguments: `out` is memory for the results: one array, or the structure that a call would
        return, with arrays of any framework for the results. The arrays are filled, and `out` is
        returned. Results that are not contiguous or not aligned go through a temporary copy, and so
        do arguments that `out` overlaps (`copies`); nothing else is allocated for results. After an
        error the contents of the arrays are undefined. For a result that is an updated parameter,
        pass the argument or None. A parameter named `out` must be passed by position.

        Raises: ArgumentError (BW7xx) naming the argument or result, the rule and the remedy.
        """
        if self._direct and not named and out is None and len(inputs) == self._count:
            return self._run(inputs)
        if named or self._inputs is not None:
            inputs = self._tensors(inputs, named)
        if len(inputs) != self._count:
            raise self._wrong_number(len(inputs))
        if out is not None:
            return self._call_into(inputs, out)
        result = self._function(*inputs) if self._usual else self._call_stored(inputs)
        if self._simple:
            return result
        if self._updated:
            result = self._with_updated(inputs, result)
        return unflatten(self.signature.outputs_tree, result)

    def _with_updated(self, inputs: Sequence[Any], result: Any) -> list[Any]:
        """All results in order: new ones, and the arguments that were updated in place."""
        fresh = len(self.signature.results)
        new = iter(() if fresh == 0 else (result,) if fresh == 1 else result)
        count = fresh + len(self._updated)
        return [inputs[self._updated[k]] if k in self._updated else next(new) for k in range(count)]

    @property
    def direct(self) -> tuple[Callable[[tuple[Any, ...]], Any] | None, int]:
        """What calls the code with a tuple of arrays, if arguments and results need no preparation,
        and the number of arguments."""
        return (self._run if self._direct else None), self._count

    def _tensors(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call, in parameter order."""
        names = [p.name for p in self.signature.parameters]
        if self._inputs is not None and self._inputs.nests(inputs, named, names):
            return self._inputs.tensors(self.signature.name, inputs, named, self._count)
        return self._positional(inputs, named) if named else inputs

    def _call_stored(self, inputs: tuple[Any, ...]) -> Any:
        """Call with arguments or results that are stored in another form."""
        try:
            return self._forms.counted(self._function(*self._forms.stored(inputs)))
        except ArgumentError as error:
            raise self._forms.explain(error) from None

    def _call_into(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """Call with the results written into the arrays of `out`."""
        tree, results = self.signature.outputs_tree, self.signature.results
        objects = [r.name for r in results if r.is_object]
        if objects:
            raise ArgumentError(
                f"results of {self.signature.name} are objects: {', '.join(objects)}",
                code="BW722",
                help="call it without `out`",
            )
        if tree is None and results:
            tree = 0
        count = len(results) + len(self._updated)
        memory = [out] if tree == 0 else flatten(tree, out, count)
        memory = self._fresh(inputs, memory)
        try:
            if self._usual:
                self._function(*inputs, *memory)
            else:
                self._function(*self._forms.stored(inputs), *self._forms.written(memory))
        except ArgumentError as error:
            if error.code == "BW701":  # the count is right, so the code is of an earlier version
                raise ArgumentError(
                    "the artefact was saved by a version whose code cannot write into `out`",
                    code="BW701",
                    help="save the model again, or call it without `out`",
                ) from None
            raise error if self._usual else self._forms.explain(error) from None
        return out

    def _fresh(self, inputs: Sequence[Any], memory: Sequence[Any]) -> list[Any]:
        """The memory of results that are not updated parameters."""
        for k, position in self._updated.items():
            if memory[k] is not None and memory[k] is not inputs[position]:
                name = self.signature.parameters[position].name
                raise ArgumentError(
                    f"result {k + 1} is the parameter `{name}`, which is updated in place",
                    code="BW722",
                    help=f"pass the argument `{name}` or None as memory for this result",
                )
        return [value for k, value in enumerate(memory) if k not in self._updated]

    def _wrong_number(self, given: int) -> ArgumentError:
        names = [p.name for p in self.signature.parameters]
        listed = f" ({', '.join(names)})" if names else ""
        return ArgumentError(
            f"{self.signature.name}: expected {len(names)} argument{'s' * (len(names) != 1)}"
            f"{listed}, got {given}",
            code="BW701",
            help=_OUT if "out" in names else "pass each parameter once, by position or by name",
        )

    def _positional(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        names = [p.name for p in self.signature.parameters]
        values = dict(zip(names, inputs, strict=False))
        for name, value in named.items():
            if name not in names:
                raise ArgumentError(
                    f"there is no argument `{name}`",
                    code="BW701",
                    help=f"arguments: {', '.join(names)}",
                )
            if name in values:
                raise ArgumentError(f"argument `{name}` is given twice", code="BW701")
            values[name] = value
        missing = [n for n in names if n not in values]
        if missing:
            raise ArgumentError(
                f"arguments missing: {', '.join(missing)}",
                code="BW701",
                help=_OUT if "out" in missing else "pass them by position or by name",
            )
        return tuple(values[n] for n in names)

    def profile(self, *inputs: Any, repeat: int = 5, roofline: Roofline | None = None) -> Profile:
        """Time every kernel of a call; supported for models compiled in this process only.

        Raises: OptionError (BW907) on a loaded artefact, which has no programs to instrument.
        """
        raise OptionError(
            "a loaded artefact cannot be profiled",
            code="BW907",
            help="profile the result of bw.compile",
        )

    @property
    def memory_plan(self) -> MemoryPlan:
        """The memory plan of the compiled code; see `MemoryPlan`."""
        plan: dict[str, Any] = self.signature.memory or self.metadata.extra["memory_plan"]
        known = msgspec.convert(plan, MemoryPlan)
        return msgspec.structs.replace(known, signature=self.signature)

    def measure_memory(self, *inputs: Any) -> int:
        """Call the function, and return the peak of the bytes that its code took in this call: the
        arena, scratch memory of kernels, and results, without rounding by allocators.

        On one thread it is what `memory_plan.activation_bytes` predicts. Other calls at the same
        time are counted, too.

        Raises: as a call; ArtefactError (BW807) for an artefact of an earlier version.
        """
        return peak_bytes(self._library, lambda: self(*inputs))

    @property
    def copies(self) -> int:
        """Number of arguments and result arrays copied so far because compiled code cannot use
        their layout."""
        return self._function.copies
