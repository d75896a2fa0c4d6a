"""A product: its operands, the operators behind it, and what it must compute."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import torch
from torch.nn import functional

Array = np.ndarray[Any, Any]

EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
"""Largest relative error of a rounding."""
_TANH = 8
"""Roundings that `tanh` counts for."""
_WINOGRAD = 64
"""Further roundings, relative to the largest sum, in convolutions of windows of three by three."""
_SMALLEST = 1e-6
"""Error of results near zero, where half types and units for products lose digits."""


class Product(msgspec.Struct, frozen=True):
    """A product `form` of `x` and `w`, and the operators behind it.

    Attributes:
        form: "matmul", "linear", "einsum", "conv1d" or "conv2d".
        types: of `x`, of `w`, and of the result.
        x, w: shapes; every call may have another size in place of a symbolic one.
        symbolic: axes of `x` with symbolic sizes, the same in `w` where `shared` says so.
        shared: pairs of axes of `x` and `w` with one size.
        equation: of `einsum`.
        attrs: attributes of the operator.
        steps: what follows: "bias", "relu", "residual", "scale", "tanh", "float".
        constant: whether `w` is known at compile time.
        exact: whether sums of the values are exact in all types.
        sizes: factors of the symbolic sizes, one for each call.
    """

    form: str
    types: tuple[str, str, str]
    x: tuple[int, ...]
    w: tuple[int, ...]
    symbolic: tuple[int, ...] = ()
    shared: tuple[tuple[int, int], ...] = ()
    equation: str = ""
    attrs: tuple[tuple[str, Any], ...] = ()
    steps: tuple[str, ...] = ()
    constant: bool = False
    exact: bool = False
    sizes: tuple[tuple[int, ...], ...] = ((),)
    target: str = "native"
    threads: int = 2

    @property
    def integers(self) -> bool:
        return self.types[2] == "int32"

    @property
    def result(self) -> str:
        """The type of the result, behind the operators."""
        return "float32" if "float" in self.steps else self.types[2]

    @property
    def channels(self) -> int:
        """The axis of the result along which the bias varies, from the end."""
        return {"conv1d": 2, "conv2d": 3}.get(self.form, 1)

    @property
    def outputs(self) -> int:
        """The size of this axis."""
        if self.form == "matmul":
            return self.w[-1]
        if self.form == "einsum":
            letter = self.equation[-1]
            first, second = self.equation.partition("->")[0].split(",")
            return self.w[second.index(letter)] if letter in second else self.x[first.index(letter)]
        return self.w[0]

    def shapes(self, call: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of `x` and `w` in a call."""
        x, w = list(self.x), list(self.w)
        for axis, size in zip(self.symbolic, self.sizes[call], strict=True):
            x[axis] = size
            for mine, other in self.shared:
                if mine == axis:
                    w[other] = size
        return tuple(x), tuple(w)

    def operands(self, call: int, seed: int) -> dict[str, Array]:
        """The operands of a call by name, without a constant `w`, which is that of call 0."""
        chance = np.random.default_rng([seed, call])
        x, w = self.shapes(call)
        kept = np.random.default_rng([seed, 99]) if self.constant else chance
        result = {
            "x": self._draw(x, self.types[0], chance),
            "w": self._draw(w, self.types[1], kept),
        }
        if "bias" in self.steps:
            shape = (self.outputs, *[1] * (self.channels - 1))
            result["b"] = self._draw(shape, self.types[2], chance)
        if "residual" in self.steps:
            shape = self.product(result["x"], result["w"])[0].shape
            result["r"] = self._draw(shape, self.types[2], chance)
        return result

    def _draw(self, shape: tuple[int, ...], dtype: str, chance: np.random.Generator) -> Array:
        if dtype in ("int8", "uint8"):
            ends = np.iinfo(dtype)
            wide = chance.integers(ends.min, ends.max + 1, shape)
            extreme = np.where(chance.random(shape) < 0.5, ends.min, ends.max)
            return np.where(chance.random(shape) < 0.2, extreme, wide).astype(dtype)
        if dtype == "int32":
            return chance.integers(-(2**31), 2**31, shape).astype(dtype)
        kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        if self.exact:  # sums of at most 200 absolute values of one
            share = min(1.0, 150 / max(1, self.terms))
            signs = chance.integers(0, 2, shape) * 2 - 1
            return np.where(chance.random(shape) < share**0.5, signs, 0).astype(kind)
        return chance.standard_normal(shape).astype(np.float32).astype(kind)

    @property
    def terms(self) -> int:
        """The number of products of a sum."""
        if self.form == "matmul":
            return self.x[-1]
        if self.form == "einsum":
            first, result = self.equation.partition(",")[0], self.equation.partition("->")[2]
            return math.prod(n for n, name in zip(self.x, first, strict=True) if name not in result)
        return math.prod(self.w[1:])

    # -------------------------------------------------------------------------- its meaning
    def product(self, x: Array, w: Array) -> tuple[Array, Array]:
        """The product in float64, or of integers exactly, and the sum of the absolute values."""
        a, b = x.astype(np.float64), w.astype(np.float64)
        return self._multiply(a, b), self._multiply(np.abs(a), np.abs(b))

    def _multiply(self, a: Array, b: Array) -> Array:
        if self.form == "matmul":
            return np.matmul(a, b)
        if self.form == "linear":
            return np.matmul(a, b.T)
        if self.form == "einsum":
            return np.einsum(self.equation, a, b)
        attrs = dict(self.attrs)
        convolve = functional.conv1d if self.form == "conv1d" else functional.conv2d
        found = convolve(
            torch.tensor(a), torch.tensor(b), stride=attrs["strides"],
            padding=attrs["padding"], dilation=attrs["dilation"], groups=attrs["groups"],
        )  # fmt: skip
        return found.numpy()

    def expected(self, operands: dict[str, Array]) -> tuple[Array, Array]:
        """The result in float64, and how far from it each element may be."""
        value, total = self.product(operands["x"], operands["w"])
        if self.integers:
            return self._expected_integers(value, operands)
        eps = EPS[self.types[2]]
        near = (self.terms + 4) * EPS["float32"] * total
        if self.form == "conv2d" and self.w[2:] == (3, 3):
            near = near + _WINOGRAD * EPS["float32"] * total.max(initial=0.0)
        near = near + eps * np.abs(value) + _SMALLEST
        for step in self.steps:
            value, near = self._step(step, value, near, eps, operands)
        return value, np.zeros_like(near) if self._is_exact(total) else near

    def _is_exact(self, total: Array) -> bool:
        winograd = self.form == "conv2d" and self.w[2:] == (3, 3)
        small = bool(total.max(initial=0.0) < 250)
        return self.exact and small and not winograd and "tanh" not in self.steps

    @staticmethod
    def _step(
        step: str, value: Array, near: Array, eps: float, operands: dict[str, Array]
    ) -> tuple[Array, Array]:
        if step == "relu":
            return np.maximum(value, 0), near
        if step == "float":
            return value, near
        if step == "scale":
            value, near = value * 0.5, near * 0.5
        elif step == "tanh":
            value, near = np.tanh(value), near + _TANH * eps
        else:
            value = value + operands["b" if step == "bias" else "r"].astype(np.float64)
        return value, near + eps * (np.abs(value) + near)

    def _expected_integers(self, value: Array, operands: dict[str, Array]) -> tuple[Array, Array]:
        found = value.astype(np.int64)
        near = np.zeros_like(value)
        for step in self.steps:
            if step in ("bias", "residual"):
                found = found + operands["b" if step == "bias" else "r"]
            elif step == "relu":
                found = np.maximum(found.astype(np.int32), 0).astype(np.int64)
            elif step == "float":
                rounded = found.astype(np.int32).astype(np.float32).astype(np.float64)
                return (rounded * 0.5 if "scale" in self.steps else rounded), near
        return found.astype(np.int32).astype(np.float64), near

    # ---------------------------------------------------------------------------- its text
    def text(self) -> str:
        """The module of the product, except of `einsum`."""
        names = {axis: f"n{k}" for k, axis in enumerate(self.symbolic)}
        x = [f'"{names[k]}"' if k in names else str(n) for k, n in enumerate(self.x)]
        w = [str(n) for n in self.w]
        for mine, other in self.shared:
            w[other] = x[mine]
        params = [_parameter("x", x, self.types[0]), _parameter("w", w, self.types[1])]
        lines = [f"y = {self._call()}"]
        if "bias" in self.steps:
            shape = [str(self.outputs), *["1"] * (self.channels - 1)]
            params.append(_parameter("b", shape, self.types[2]))
        for step in self.steps:
            lines.append(f"y = {self._text_of(step)}")
        body = "".join(f"        {line}\n" for line in lines)
        if "residual" in self.steps:
            whole, _ = self.product(np.zeros(self.x), np.zeros(self.w))
            params.append(_parameter("r", [str(n) for n in whole.shape], self.types[2]))
        head = f"@I.ir_module\nclass Module:\n    @R.function\n    def main({', '.join(params)}):\n"
        return f"{head}{body}        return y\n"

    def _call(self) -> str:
        out = ', out_dtype="int32"' if self.integers else ""
        if self.form == "matmul":
            return f"R.matmul(x, w{out})"
        if self.form == "linear":
            return f"R.matmul(x, R.permute_dims(w){out})" if out else "R.linear(x, w)"
        attrs = "".join(f", {name}={value!r}" for name, value in self.attrs)
        return f"R.nn.{self.form}(x, w{attrs}{out})"

    def _text_of(self, step: str) -> str:
        return {
            "bias": "R.add(y, b)",
            "residual": "R.add(y, r)",
            "relu": "R.nn.relu(y)",
            "tanh": "R.tanh(y)",
            "scale": f'R.multiply(y, R.const(0.5, "{self.result}"))',
            "float": 'R.astype(y, "float32")',
        }[step]


def _parameter(name: str, shape: list[str], dtype: str) -> str:
    return f'{name}: R.Tensor(({", ".join(shape)},), "{dtype}")'


class Einsum(torch.nn.Module):
    """A module of PyTorch that computes `einsum` and what follows it."""

    def __init__(self, product: Product, w: Array | None) -> None:
        super().__init__()
        self.product = product
        if w is not None:
            self.register_buffer("weight", tensor(w))

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        given = iter(operands)
        x = next(given)
        w = getattr(self, "weight", None)
        y = torch.einsum(self.product.equation, x, next(given) if w is None else w)
        for step in self.product.steps:
            if step == "bias":
                y = y + next(given)
            elif step == "relu":
                y = torch.relu(y)
            elif step == "tanh":
                y = torch.tanh(y)
            elif step == "scale":
                y = y * 0.5
        return y


def tensor(array: Array) -> torch.Tensor:
    """The tensor of an array, also of bfloat16."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.tensor(array.view(np.int16)).view(torch.bfloat16)
    return torch.tensor(array)
