"""Callable compiled models; the same class serves a fresh compilation and a loaded artefact."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from blockwright.runtime.arguments import NativeFunction
from blockwright.runtime.artefact import ExportedFunction, Metadata, load_artefact
from blockwright.runtime.inputs import InputTree
from blockwright.runtime.library import Library
from blockwright.runtime.memory_order import MemoryOrders
from blockwright.runtime.profile import Profile
from blockwright.runtime.results import flatten, unflatten
from blockwright.runtime.roofline import Roofline
from blockwright.runtime.sizes import bind_symbols, evaluate_size
from blockwright.support import ArgumentError, OptionError
from blockwright.support.uncopied import Uncopied

_OUT = "`out=` is memory for the results; pass the parameter `out` by position"


class MemoryPlan(msgspec.Struct, frozen=True):
    """The memory of one call, known at compile time.

    Attributes:
        packed_weight_bytes: bytes of the constants in the artefact, as packed for the kernels.
        arena: bytes of the arena of one call, an expression over the symbols.
        unshared: the same if values did not share storage.
        storages: per storage in the arena: (size expression, names of the values it holds in turn).
    """

    packed_weight_bytes: int
    arena: int | str
    unshared: int | str
    storages: tuple[tuple[int | str, tuple[str, ...]], ...] = ()
    signature: ExportedFunction | None = None

    def activation_bytes(self, *inputs: Any) -> int:
        """Bytes of the arena and the results for inputs of these shapes."""
        signature = self.signature
        assert signature is not None
        values = bind_symbols(
            [(p.shape, tuple(x.shape)) for p, x in zip(signature.parameters, inputs, strict=False)]
        )
        total = evaluate_size(self.arena, values)
        for result in signature.results:
            size = _item_size(result.dtype)
            for dim in result.shape:
                size *= evaluate_size(dim, values)
            total += size
        return total


def _item_size(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits) // 8) if digits and not dtype.startswith("float8") else 1


class Executable(Uncopied):
    """A compiled model.

    `exe(*inputs)` returns the model's own output structure, in the framework of the first tensor
    argument. For a model without inputs it is the framework that the model was imported from if
    that is loaded, else NumPy.
    `exe(*inputs, out=...)` writes the results into arrays of the caller and allocates none.
    Inputs are either the model's tensors in a flat sequence, or the nested arguments of the
    imported model, with the same values for arguments that are not tensors.
    """

    def __init__(self, library: Library, metadata: Metadata) -> None:
        self.metadata = metadata
        self.signature = next(f for f in metadata.functions if f.name == metadata.main)
        names = [p.name for p in self.signature.parameters]
        results = [r.name for r in self.signature.results]
        entry = library.function(metadata.main)
        self._function = NativeFunction(
            entry, metadata.main, names, (), results, library, self.signature.framework
        )
        self._run = self._function.call
        self._count = len(names)
        self._orders = MemoryOrders(self.signature.parameters, self.signature.results)
        self._usual = self._orders.usual
        self._simple = self.signature.outputs_tree in (None, 0)
        tree = self.signature.inputs_tree
        self._inputs = None if tree is None else msgspec.convert(tree, InputTree)
        self._direct = self._usual and self._simple and self._inputs is None

    def __repr__(self) -> str:
        params = ", ".join(
            f"{p.name}: {p.dtype}[{', '.join(map(str, p.shape))}]"
            for p in self.signature.parameters
        )
        return f"<Executable {self.metadata.main}({params})>"

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Run the model. Keyword arguments are matched to parameter names.

        Arguments: `out` is memory for the results: one array, or the structure that a call would
        return, with arrays of any framework for the results. The arrays are filled, and `out` is
        returned. Results that are not contiguous or not aligned go through a temporary copy, and so
        do arguments that `out` overlaps (`copies`); nothing else is allocated for results. After an
        error the contents of the arrays are undefined. A model parameter that is itself named `out`
        must be passed by position.

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
        return result if self._simple else unflatten(self.signature.outputs_tree, result)

    def _tensors(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The tensors of a call, in parameter order."""
        names = [p.name for p in self.signature.parameters]
        if self._inputs is not None and self._inputs.nests(inputs, named, names):
            return self._inputs.tensors(self.metadata.main, inputs, named, self._count)
        return self._positional(inputs, named) if named else inputs

    def _call_stored(self, inputs: tuple[Any, ...]) -> Any:
        """Call with arguments or results whose storage order differs from their axis order."""
        try:
            return self._orders.counted(self._function(*self._orders.stored(inputs)))
        except ArgumentError as error:
            raise self._orders.explain(error) from None

    def _call_into(self, inputs: tuple[Any, ...], out: Any) -> Any:
        """Call with the results written into the arrays of `out`."""
        tree, results = self.signature.outputs_tree, self.signature.results
        if tree is None and results:
            tree = 0
        memory = [out] if tree == 0 else flatten(tree, out, len(results))
        try:
            if self._usual:
                self._function(*inputs, *memory)
            else:
                self._function(*self._orders.stored(inputs), *self._orders.written(memory))
        except ArgumentError as error:
            if error.code == "BW701":  # the count is right, so the code is of an earlier version
                raise ArgumentError(
                    "the artefact was saved by a version whose code cannot write into `out`",
                    code="BW701",
                    help="save the model again, or call it without `out`",
                ) from None
            raise error if self._usual else self._orders.explain(error) from None
        return out

    def _wrong_number(self, given: int) -> ArgumentError:
        names = [p.name for p in self.signature.parameters]
        listed = f" ({', '.join(names)})" if names else ""
        return ArgumentError(
            f"{self.metadata.main}: expected {len(names)} argument{'s' * (len(names) != 1)}"
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
        plan = self.metadata.extra["memory_plan"]
        storages = tuple((s, tuple(names)) for s, names in plan.get("storages", ()))
        return MemoryPlan(
            plan["packed_weight_bytes"], plan["arena"], plan["unshared"], storages, self.signature
        )

    @property
    def copies(self) -> int:
        """Number of arguments and result arrays copied so far because compiled code cannot use
        their layout."""
        return self._function.copies


def load(path: str | os.PathLike[str]) -> Executable:
    """Load a saved artefact. Needs the base install only; imports no compiler.

    Raises: ArtefactError (BW80x) when the file is damaged, newer, or for another processor.
    """
    artefact = load_artefact(path)
    return Executable(artefact.library, artefact.metadata)
