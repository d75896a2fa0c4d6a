"""Graph functions as lists of bindings, each with its text and its meaning in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec
import numpy as np

Sizes = dict[str, int]
Array = np.ndarray[Any, Any]
Compute = Callable[["Run"], Any]
EXACT = 1 << 20
"""Numbers of float types stay below this limit, so that every operation on them is exact."""


class Rejected(Exception):
    """The call must be rejected: a checked cast does not hold."""


class Inexact(Exception):
    """A float is too large for exact results, or an index is outside its axis."""


class Run:
    """The values of one call: by name, and the sizes by symbol."""

    def __init__(self, sizes: Mapping[str, int], values: Mapping[str, Array]) -> None:
        self.sizes, self.values = dict(sizes), dict[str, Any](values)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def size(self, dim: str) -> int:
        """The number that a dimension such as `n * 2 + 1` stands for."""
        return int(eval(dim, {"__builtins__": {}}, dict(self.sizes)))

    def shape(self, dims: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.size(dim) for dim in dims)


class Value(msgspec.Struct, frozen=True):
    """A named tensor; `dims` are expressions over symbols."""

    name: str
    dims: tuple[str, ...]
    dtype: str

    @property
    def info(self) -> str:
        """Its annotation."""
        return f'R.Tensor(({"".join(f"{d}, " for d in self.dims)}), "{self.dtype}")'

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def is_fixed(self) -> bool:
        return all(d.isdigit() for d in self.dims)


class Binding(msgspec.Struct, frozen=True):
    """A line of the function.

    Attributes:
        name: the value, a tensor or a tuple, that it defines; text: the line.
        uses: names that it depends on.
        compute: its meaning.
        left: parameter that it overwrites → what it leaves there.
    """

    name: str
    text: str
    uses: frozenset[str]
    compute: Compute
    left: Mapping[str, Compute] = {}


class Graph(msgspec.Struct, frozen=True):
    """A graph function.

    Attributes:
        parameters, bindings, outputs: its parts.
        calls: sizes and arguments of the calls to test; the first is the one it was drawn for.
        dataflow: whether the bindings are in a dataflow block.
    """

    parameters: tuple[Value, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[str, ...]
    calls: tuple[tuple[Sizes, tuple[Array, ...]], ...]
    dataflow: bool

    def expected(self, sizes: Sizes, arguments: Sequence[Array]) -> list[Array]:
        """The results of a call. Raises: Rejected, Inexact."""
        run = self._run(sizes, arguments)
        return [run[name] for name in self.outputs]

    def left(self, sizes: Sizes, arguments: Sequence[Array]) -> list[Array]:
        """The arguments after a call, some of which it has overwritten. Raises: like `expected`."""
        if not any(binding.left for binding in self.bindings):
            return list(arguments)
        run = self._run(sizes, arguments)
        content = {p.name: a for p, a in zip(self.parameters, arguments, strict=True)}
        for binding in self.bindings:
            content |= {name: compute(run) for name, compute in binding.left.items()}
        return list(content.values())

    def _run(self, sizes: Sizes, arguments: Sequence[Array]) -> Run:
        given = {p.name: a for p, a in zip(self.parameters, arguments, strict=True)}
        run = Run(sizes, given)
        with np.errstate(all="ignore"):
            for binding in self.bindings:
                run.values[binding.name] = checked(binding.compute(run))
        return run

    def text(self) -> str:
        """The module as a script."""
        listed = ", ".join(f"{p.name}: {_declared(p)}" for p in self.parameters)
        lines = [line for b in self.bindings for line in b.text.split("\n")]
        if self.dataflow:
            bound = [name for name in dict.fromkeys(self.outputs) if name.startswith("v")]
            lines.append(f"R.output({', '.join(bound)})")
            lines = ["with R.dataflow():", *(f"    {line}" for line in lines)]
        lines = ["n = T.int64()", "m = T.int64()", *lines]
        lines.append(f"return ({''.join(f'{name}, ' for name in self.outputs)})")
        body = "\n".join(f"        {line}" for line in lines)
        head = f"@I.ir_module\nclass Module:\n{self.callees}\n    @R.function\n"
        return f"{head}    def main({listed}):\n{body}\n"

    @property
    def callees(self) -> str:
        """The other functions of the module."""
        return CALLEES

    @property
    def tensors(self) -> frozenset[str]:
        """Names of the bindings that are tensors, in the first call."""
        sizes, arguments = self.calls[0]
        given = {p.name: a for p, a in zip(self.parameters, arguments, strict=True)}
        run = Run(sizes, given)
        for binding in self.bindings:
            run.values[binding.name] = binding.compute(run)
        return frozenset(
            b.name for b in self.bindings if isinstance(run.values[b.name], np.ndarray)
        )

    def trimmed(self, outputs: Sequence[str]) -> Self:
        """The graph with only these outputs and what they depend on."""
        needed, kept = set(outputs), list[Binding]()
        for binding in reversed(self.bindings):
            if binding.name in needed:
                needed |= binding.uses
                kept.append(binding)
        return msgspec.structs.replace(self, bindings=tuple(reversed(kept)), outputs=tuple(outputs))


def _declared(parameter: Value) -> str:
    """The annotation of a parameter, which declares its symbols."""
    dims = "".join(f"{d}, " if d.isdigit() else f'"{d}", ' for d in parameter.dims)
    return f'R.Tensor(({dims}), "{parameter.dtype}")'


def checked(value: Any) -> Any:
    """A value, if it is exact. Fields of tuples are checked one by one."""
    fields: Any = value
    if isinstance(value, tuple):
        for field in fields:
            checked(field)
    elif fields.dtype.kind == "f" and fields.size and not np.abs(fields).max() < EXACT:
        raise Inexact
    return fields


CALLEES = """    @T.prim_func(private=True)
    def turned(x: T.handle, y: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "int32")
        Y = T.match_buffer(y, (m, n), "int32")
        for i, j in T.grid(m, n):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = X[n - 1 - vj, vi] * 3 + T.Cast("int32", vi)

    @T.prim_func(private=True)
    def running(x: T.handle, y: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "int32")
        Y = T.match_buffer(y, (n, m), "int32")
        for i, j in T.grid(n, m):
            Y[i, j] = X[i, j] + T.if_then_else(j > 0, Y[i, T.max(j - 1, 0)], 0)

    @T.prim_func(private=True)
    def extended(x: T.handle, k: T.int64, y: T.handle, z: T.handle):
        n = T.int64()
        m = T.int64()
        X = T.match_buffer(x, (n, m), "int32")
        Y = T.match_buffer(y, (n,), "int32")
        Z = T.match_buffer(z, (n, m + 1), "int32")
        for i, j in T.grid(n, m + 1):
            with T.block("Z"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = T.if_then_else(vj < m, X[vi, vj], T.Cast("int32", k))
        for i, j in T.grid(n, m):
            with T.block("Y"):
                vi, vj = T.axis.remap("SR", [i, j])
                with T.init():
                    Y[vi] = 0
                Y[vi] = Y[vi] + X[vi, vj] * Z[vi, vj + 1]
"""
"""Tensor programs that every module contains; `operators` states what they compute."""
