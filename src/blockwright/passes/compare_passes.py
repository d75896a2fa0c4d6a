"""An instrument that compares what a module computes before and after every pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import numpy as np

from blockwright import ir
from blockwright.graph.interpreter import interpret_graph
from blockwright.passes.instrument import Instrument
from blockwright.support import BuildError

Array = np.ndarray[Any, Any]


class ComparePasses(Instrument):
    """Interprets a graph function after every pass and compares the results with those before.

    Passes after which the function is no longer a graph function are not compared. The interpreter
    is slow: use small sizes.

    Arguments:
        arguments: of the function, as for `bw.interpret`.
        entry: its name.
        rtol, atol: tolerances of floats, as in `numpy.allclose`; integers have to be equal.
        packed: Python functions for calls of foreign functions.
    """

    def __init__(
        self,
        *arguments: Any,
        entry: str = "main",
        rtol: float = 1e-4,
        atol: float = 1e-5,
        packed: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.arguments, self.entry, self.packed = arguments, entry, packed
        self.rtol, self.atol = rtol, atol
        self._known: tuple[ir.IRModule, list[Array]] | None = None

    def after(self, name: str, before: ir.IRModule, after: ir.IRModule) -> None:
        """Compare the results. Raises: BuildError BW648 if they differ; interpreter errors."""
        if before is after or not isinstance(after.functions.get(self.entry), ir.GraphFunction):
            return
        wanted = self._results(before)
        found = self._results(after)
        if len(wanted) != len(found):
            raise self._changed(name, f"returns {len(found)} values, not {len(wanted)}")
        for position, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                kinds = f"{a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
                raise self._changed(name, f"returns {kinds} as value {position}")
            if not self._agree(a, b):
                raise self._changed(name, f"computes a different value {position}")

    def _results(self, module: ir.IRModule) -> list[Array]:
        """The arrays that the function returns; those of the last module are known."""
        if self._known is None or self._known[0] is not module:
            copied = _copied(self.arguments)
            value = interpret_graph(module, *copied, entry=self.entry, packed=self.packed)
            self._known = (module, list(_arrays(value)))
        return self._known[1]

    def _agree(self, found: Array, wanted: Array) -> bool:
        if found.dtype.kind in "biu":
            return bool(np.array_equal(found, wanted))
        wide = [
            x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (found, wanted)
        ]
        return bool(np.allclose(*wide, rtol=self.rtol, atol=self.atol, equal_nan=True))

    def _changed(self, name: str, how: str) -> BuildError:
        return BuildError(
            f"the pass {name} changed the meaning of {self.entry}: it {how}",
            code="BW648",
            help=f"run the pipeline until({name!r}) to see the module; "
            "rtol and atol set the tolerances",
        )


def _copied(value: Any) -> Any:
    """A copy of arguments: `call_tir_inplace` may write into them."""
    if isinstance(value, tuple):
        return tuple(map(_copied, cast("tuple[Any, ...]", value)))
    return cast("Array", value).copy() if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Iterator[Array]:
    """The arrays, shapes and numbers of a result."""
    if isinstance(value, tuple):
        for field in cast("tuple[Any, ...]", value):
            yield from _arrays(field)
    else:
        yield np.asarray(value)
