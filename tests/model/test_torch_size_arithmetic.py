"""Arithmetic on symbolic sizes, which are compared with Python's for several sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import blockwright as bw

SIZES = ((11, 7, 5), (20, 29, 6), (3, 2, 30), (8, 8, 4), (30, 2, 7))
_torch: Any = torch
NAMES: dict[str, Any] = {
    "math": math, "torch": torch, "min": _torch.sym_min, "max": _torch.sym_max,
}  # fmt: skip


class Computed(torch.nn.Module):
    """`use(x, value)` of each of some expressions of the sizes n, m and k."""

    def __init__(self, texts: Sequence[str], use: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.code = [compile(text, text, "eval") for text in texts]
        self.use = use

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
        sizes = {"n": x.shape[0], "m": y.shape[0], "k": z.shape[0]}
        return [self.use(x, eval(code, {**NAMES, **sizes})) for code in self.code]


def inputs(sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.arange(size, dtype=torch.float64) + 1 for size in sizes)


def compiled(model: torch.nn.Module, **limits: int) -> Any:
    given: Any = {"min": 2, "max": 30, **limits}
    shapes = tuple({0: torch.export.Dim(name, **given)} for name in "nmk")
    return bw.compile(model, inputs(SIZES[0]), dynamic_shapes=shapes)


def answered(executable: Any, x: Sequence[torch.Tensor]) -> Any:
    """The results; None for sizes that the exporter excludes, which assumes that none is 0 or 1."""
    try:
        return executable(*x)
    except bw.ArgumentError as error:
        if error.code != "BW719":
            raise
        return None


def check(model: Computed, sizes: Sequence[Sequence[int]] = SIZES) -> None:
    executable = compiled(model)
    accepted = 0
    for given in sizes:
        x = inputs(given)
        results = answered(executable, x)
        if results is None:
            continue
        accepted += 1
        for code, got, want in zip(model.code, results, model(*x), strict=True):
            assert got.dtype == want.dtype, code.co_filename
            assert torch.equal(got, want), (code.co_filename, given)
    assert accepted > len(sizes) // 2


class Drawn:
    """Random expressions of n, m and k, as text."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def whole(self, depth: int) -> str:
        if not depth:
            return self.rng.choice("nmk")
        a, b = self.whole(depth - 1), self.whole(self.rng.randrange(depth))
        number = self.rng.randrange(1, 9)
        return self.rng.choice((
            f"({a} + {b})", f"({a} - {b})", f"({a} - {number})", f"({a} * {number})", f"(-{a})",
            f"({a} // {number})", f"({a} % {number})", f"({a} // max({b}, 1))", f"abs({a} - {b})",
            f"min({a}, {b})", f"max({a}, {b})", f"torch.sym_ite({self.condition()}, {a}, {b})",
            f"({a} & {b})", f"({a} | {number})", f"({a} << {number % 4})", f"({a} >> (k % 3))",
            f"({self.rng.choice('nmk')} ** 2 - {a})", f"torch.sym_sum([{a}, {b}, n])",
            f"{self.rounding()}({self.real(depth - 1)})",
        ))  # fmt: skip

    def rounding(self) -> str:
        return self.rng.choice(("math.floor", "math.ceil", "math.trunc", "round", "torch.sym_int"))

    def real(self, depth: int) -> str:
        a, b = self.whole(depth), self.whole(depth)
        factor = self.rng.choice((0.5, 0.3, 1.5, 1.7, 2.0, 0.1))
        return self.rng.choice((
            f"{a} / {self.rng.choice('nmk')}", f"{a} / {self.rng.randrange(2, 9)}",
            f"{a} * {factor}", f"{a} * {factor} - {b}", f"abs({a} * {factor}) / max({b}, 1)",
            f"{a} * {factor} * {self.rng.choice((0.7, 2.0, 10.0))}",
        ))  # fmt: skip

    def condition(self) -> str:
        sides = self.rng.choice("nmk"), self.rng.choice("nmk123")
        op = self.rng.choice(("<", "<=", "==", "!=", ">", ">="))
        first = f"({sides[0]} {op} {sides[1]})"
        return self.rng.choice((first, f"torch.sym_not({first})", f"({first} & (m > 4))"))


@pytest.mark.parametrize("seed", range(3))
def test_numbers_computed_from_sizes(seed: int) -> None:
    drawn = Drawn(seed)
    texts = [drawn.whole(1 + count % 3) for count in range(12)]
    texts += [drawn.real(1) for _ in range(4)]
    check(Computed(texts, lambda x, value: x * value))


def test_sizes_computed_from_sizes() -> None:
    drawn = Drawn(100)
    texts = [f"min(abs({drawn.whole(1 + count % 3)}), 9) + 2" for count in range(6)]
    check(Computed(texts, lambda x, value: x.new_zeros(value)))


def test_conditions_are_operands() -> None:
    conditions = ["n > m", "torch.sym_not(n <= 6)", "(n > 6) & (m < 9)", "n / 7 > 1"]

    def used(x: Any, value: Any) -> Any:
        chosen = torch.where(x > 4, value, False)
        return x * value + chosen.double() + x.clamp(-1, value)

    check(Computed(conditions, used))


def test_whole_powers_of_sizes_keep_integer_types() -> None:
    check(Computed(["n**2", "2**(k % 5)"], lambda x, value: x.to(torch.int64) * value))


def test_computations_that_round_differently_are_not_mixed() -> None:
    """The exporter may write both as the same multiple of n, and takes it for a size."""
    first, second = "math.floor(n * 0.1 * 3.0)", "math.floor(n * 0.3 * 1.0)"
    check(Computed([f"{first} * 100 + {second}"], lambda x, value: x * value))


@pytest.mark.parametrize("text", ["n // (m - 3) + n % (m - 3) + n / (m - 3)", "n << (m - 5)"])
def test_sizes_for_which_python_raises_are_rejected(text: str) -> None:
    model = Computed([text], lambda x, value: x * value)
    executable = compiled(model)
    x = inputs((4, 9, 3))
    assert torch.equal(executable(*x)[0], model(*x)[0])
    with pytest.raises(bw.ArgumentError, match="BW719"):
        executable(*inputs((4, 3, 3)))


def test_uncomputable_numbers_name_the_source_line() -> None:
    with pytest.raises(bw.ImporterError, match=r"BW507.*decimals") as caught:
        compiled(Computed(["round(n * 0.3, 1)"], lambda x, value: x * value))
    assert "test_torch_size_arithmetic.py" in str(caught.value)


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("factor", [0.7, 1.7])
def test_images_scaled_by_a_fraction(factor: float, mode: str) -> None:
    """Sizes int(float(h) * 0.7) are known not to be negative, and memory is planned with them."""

    class Scaled(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.nn.functional.interpolate(x, scale_factor=factor, mode=mode)

    h, w = (torch.export.Dim(name, min=4, max=40) for name in "hw")
    executable = bw.compile(Scaled(), (torch.randn(1, 2, 6, 8),), dynamic_shapes=({2: h, 3: w},))
    assert len(str(executable.memory_plan.arena)) < 2000
    for size in ((6, 8), (5, 7), (40, 33), (4, 4)):
        x = torch.randn(1, 2, *size)
        torch.testing.assert_close(torch.as_tensor(executable(x)), Scaled()(x))


def test_bags_of_a_dynamic_number_of_words() -> None:
    layer = torch.nn.EmbeddingBag(10, 4, mode="mean").eval()
    bags, words = (torch.export.Dim(name, min=1, max=64) for name in ("bags", "words"))
    example = torch.randint(0, 10, (2, 3))
    executable = bw.compile(layer, (example,), dynamic_shapes={"input": {0: bags, 1: words}})
    for size in ((2, 3), (64, 5), (3, 64)):
        x = torch.randint(0, 10, size)
        torch.testing.assert_close(torch.as_tensor(executable(x)), layer(x))


@pytest.mark.parametrize(("dtype", "other"), [("float32", "float32"), ("int16", "float32"),
                                              ("uint8", "int64")])  # fmt: skip
@pytest.mark.parametrize("invert", [False, True])
def test_membership_in_a_dynamic_number_of_elements(dtype: str, other: str, invert: bool) -> None:
    """PyTorch chooses its algorithm by a power of the sizes; NaN is in no set."""
    kinds = getattr(torch, dtype), getattr(torch, other)

    class Member(torch.nn.Module):
        def forward(self, x: Any, among: Any) -> Any:
            few = among[:3]
            return tuple(torch.isin(x, y, invert=invert) for y in (among, few, 2))

    def drawn(n: int, k: int) -> tuple[Any, Any]:
        x, among = torch.randint(0, 9, (n, 2)).to(kinds[0]), torch.randint(0, 9, (k,)).to(kinds[1])
        for tensor in (x, among):
            if tensor.is_floating_point():
                tensor.view(-1)[-1], tensor.view(-1)[0] = math.nan, math.inf
        return x, among

    n, k = torch.export.Dim("n", min=1, max=300), torch.export.Dim("k", min=3, max=300)
    executable = bw.compile(Member(), drawn(6, 5), dynamic_shapes=({0: n}, {0: k}))
    for sizes in ((6, 5), (1, 3), (200, 77)):
        given = drawn(*sizes)
        for found, wanted in zip(executable(*given), Member()(*given), strict=True):
            assert torch.equal(torch.as_tensor(found), wanted)


def test_decisions_by_powers_of_sizes_are_refused_with_a_code() -> None:
    class Chosen(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.shape[0] ** 0.3 > 2.5 else x

    n = torch.export.Dim("n", min=2, max=1000)
    with pytest.raises(bw.ImporterError, match=r"BW50[39]"):
        bw.compile(Chosen(), (torch.ones(200),), dynamic_shapes=({0: n},))
