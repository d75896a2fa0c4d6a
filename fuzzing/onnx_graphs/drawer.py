"""An ONNX graph under construction: its values so far, and random choices among them.

Every value is known for all calls, which differ in their sizes. A node is kept if its operator
accepts the operands in all calls and its results are finite: sizes need no rules of their own.
Operators whose results jump, such as comparisons, are drawn with exact operands only: values of
which is known that no rounding took part.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from onnx import numpy_helper

from fuzzing.onnx_graphs.evaluate import Invalid, computed, is_exact
from fuzzing.onnx_graphs.program import Array, Input, Node, kind_of

FLOATS = ("float32", "float64", "float16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
_MOST_ELEMENTS, _MOST_AXES, _LARGEST = 4096, 5, 1e5


class Value(msgspec.Struct, frozen=True, eq=False):
    """A tensor of the graph.

    Attributes:
        arrays: its elements in each call.
        exact: whether it is the same however operations are rounded.
    """

    name: str
    arrays: tuple[Array, ...]
    exact: bool = True

    @property
    def dtype(self) -> str:
        return self.arrays[0].dtype.name

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the first call."""
        return self.arrays[0].shape

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(a.shape for a in self.arrays)

    def is_fixed(self, axis: int) -> bool:
        """Whether an axis has the same size in all calls."""
        return len({s[axis] for s in self.shapes}) == 1

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def smallest(self) -> tuple[int, ...]:
        """The smallest size of each axis."""
        return tuple(map(min, zip(*self.shapes, strict=True)))


class Drawer:
    """A graph under construction.

    Attributes:
        chance, numbers: sources of random choices; values: all tensors so far, constants excluded;
        sizes: the sizes of each call by name.
    """

    def __init__(self, seed: int, opset: int, sizes: Sequence[Mapping[str, int]]) -> None:
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset, self.sizes = opset, sizes
        self.values: list[Value] = []
        self.inputs: list[Input] = []
        self.constants: dict[str, Array] = {}
        self.nodes: list[Node] = []

    # ---------------------------------------------------------------- choices
    def maybe(self, share: float) -> bool:
        return self.chance.random() < share

    def pick(
        self, holds: Callable[[Value], bool] = lambda value: True, *, empty: bool = False
    ) -> Value | None:
        """A random value for which the condition holds, rather a late one; None if there is none.

        Values without elements are drawn if `empty`: many kernels of the reference reject or
        mishandle them.
        """
        found = [v for v in self.values if holds(v) and (empty or all(a.size for a in v.arrays))]
        if not found:
            return None
        return self.chance.choice(found[-4:] if self.maybe(0.5) else found)

    def pick_float(self, rank: int = 0, *, exact: bool = False) -> Value | None:
        """A tensor of a float type with at least `rank` axes."""
        return self.pick(lambda v: v.is_float and v.rank >= rank and (v.exact or not exact))

    def axis(self, value: Value) -> int:
        """An axis, counted from either end."""
        axis = self.chance.randrange(value.rank)
        return self.chance.choice((axis, axis - value.rank))

    def axes(self, value: Value, least: int = 1) -> list[int]:
        """Some axes, counted from either end."""
        count = self.chance.randint(min(least, value.rank), value.rank)
        chosen = self.chance.sample(range(value.rank), count)
        return [self.chance.choice((a, a - value.rank)) for a in chosen]

    def array(self, shape: Sequence[int], dtype: str) -> Array:
        """Random elements: small numbers, for some integers also the ends of the type."""
        if dtype == "bool":
            return self.numbers.integers(0, 2, shape).astype(bool)
        if dtype == "float16":
            return np.asarray(self.numbers.integers(-4, 5, shape)).astype(dtype)
        if dtype in FLOATS:
            return np.asarray(self.numbers.integers(-16, 17, shape) / 4).astype(dtype)
        info = np.iinfo(dtype)
        if self.maybe(0.25):
            ends = np.array([info.min, info.max, 0, 1, info.max - 1, info.min + 1, 3], dtype)
            return np.asarray(ends[self.numbers.integers(0, len(ends), shape)])
        return np.asarray(self.numbers.integers(max(info.min, -9), 10, shape)).astype(dtype)

    def kind(self, dtype: str) -> int:
        """The element type as an attribute."""
        return kind_of(dtype)

    def tensor(self, array: Array) -> Any:
        """A tensor as an attribute."""
        return numpy_helper.from_array(array)

    # ---------------------------------------------------------------- values
    def input(self, dims: Sequence[int | str], dtype: str) -> Value:
        name = f"x{len(self.inputs)}"
        shapes = [[d if isinstance(d, int) else s[d] for d in dims] for s in self.sizes]
        value = Value(name, tuple(self.array(shape, dtype) for shape in shapes))
        self.inputs.append(Input(name, dtype, tuple(dims)))
        self.values.append(value)
        return value

    def constant(self, elements: Any, dtype: str = "int64") -> Value:
        """A new constant, the same in all calls."""
        array = np.asarray(elements, dtype)
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return Value(name, (array,) * len(self.sizes), is_exact(array))

    def numbers_like(self, value: Value, axes: Sequence[int]) -> Value:
        """A constant of random elements with the sizes of some axes, which are fixed."""
        return self.constant(self.array([value.shape[a] for a in axes], value.dtype), value.dtype)

    def add(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[bool] = 1,
        *,
        exact: bool = False,
        captures: Sequence[Value] = (),
        **attrs: Any,
    ) -> Value | None:
        """Add a node; None if its operator rejects the operands or a result is not usable.

        Arguments:
            outputs: their number, or whether each of them is used.
            exact: results of exact operands are exact.
            attrs: attributes; None for one that is left out.
        Returns: the first result that is used.
        """
        kept = [True] * outputs if isinstance(outputs, int) else list(outputs)
        first = len(self.nodes)
        node = Node(
            op,
            tuple(v.name if v else "" for v in _without_last_none(inputs)),
            tuple(f"v{first}_{k}" if used else "" for k, used in enumerate(kept)),
            {key: value for key, value in attrs.items() if value is not None},
            tuple(v.name for v in captures),
            exact,
        )
        operands = [v for v in (*inputs, *captures) if v is not None]
        try:
            calls = [
                computed(node, {v.name: v.arrays[n] for v in operands}, self.opset)
                for n in range(len(self.sizes))
            ]
        except Invalid:
            return None
        results = [tuple(call[k] for call in calls) for k in range(len(calls[0]))]
        if not all(_usable(arrays) for arrays in results):
            return None
        known = exact and all(v.exact for v in operands)
        made = [
            Value(name, arrays, arrays[0].dtype.kind in "iub" or (known and _exact(arrays)))
            for name, arrays in zip((n for n in node.outputs if n), results, strict=True)
        ]
        self.nodes.append(node)
        self.values.extend(made)
        return made[0]


def _without_last_none(values: Sequence[Value | None]) -> list[Value | None]:
    listed = list(values)
    while listed and listed[-1] is None:
        listed.pop()
    return listed


def _exact(arrays: Sequence[Array]) -> bool:
    return all(is_exact(a) for a in arrays)


def _usable(arrays: Sequence[Array]) -> bool:
    """Whether results are finite, not too large, and of the same rank in all calls."""
    if len({a.ndim for a in arrays}) > 1 or arrays[0].ndim > _MOST_AXES:
        return False
    if any(a.size > _MOST_ELEMENTS or a.dtype.kind not in "fiub" for a in arrays):
        return False
    floats = [a for a in arrays if a.dtype.kind == "f" and a.size]
    most = 1e3 if arrays[0].dtype == np.float16 else _LARGEST
    return all(np.isfinite(a).all() and np.abs(a).max() < most for a in floats)
