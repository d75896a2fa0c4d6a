"""Modules as lists of calls that can be run by PyTorch, exported, printed and reduced."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import torch
from torch.nn import functional

from fuzzing.eager.compare import copied, in_float64, integers_become_float64


class Ref(msgspec.Struct, frozen=True):
    """Reference to a value by number: inputs first, then results of calls."""

    index: int


class Size(msgspec.Struct, frozen=True):
    """The size of one axis of a value, or whether it exceeds the number `over`."""

    index: int
    axis: int
    over: int | None = None


class ModuleCall(msgspec.Struct, frozen=True):
    """The call `fn(*args, **kwargs)`; `part` selects one of several results.

    Attributes:
        fn: a name under `torch`, `F`, `Tensor` or `operator`.
        exact: whether the result is never rounded.
    """

    fn: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}
    exact: bool = False
    part: int | None = None


class ModuleProgram(msgspec.Struct, frozen=True, eq=False):
    """Inputs, some of them buffers of the module, calls, and the values returned."""

    inputs: tuple[torch.Tensor, ...]
    buffers: frozenset[int]
    calls: tuple[ModuleCall, ...]
    outputs: tuple[int, ...]
    dynamic: bool

    @property
    def given(self) -> list[torch.Tensor]:
        """The inputs passed to the module; the others are its buffers."""
        return [t for i, t in enumerate(self.inputs) if i not in self.buffers]

    def with_given(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """All inputs, with those passed to the module replaced."""
        new = iter(tensors)
        return tuple(t if i in self.buffers else next(new) for i, t in enumerate(self.inputs))


class Unspecified(Exception):
    """The result of the call is unspecified.

    A float is converted to an integer type that cannot hold it, or float64 sums may overflow in
    between: the result depends on PyTorch's algorithm, and there is no wider type to compute it in.
    """


_ROOTS: dict[str, Any] = {
    "torch": torch,
    "F": functional,
    "Tensor": torch.Tensor,
    "operator": operator,
}


def apply(call: ModuleCall, values: Sequence[Any]) -> Any:
    """Evaluate a call on the values computed so far."""
    root, _, name = call.fn.partition(".")
    result = getattr(_ROOTS[root], name)(
        *[_value(a, values) for a in call.args],
        **{key: _value(a, values) for key, a in call.kwargs.items()},
    )
    if call.fn == "operator.setitem":
        return _value(call.args[0], values)
    return result if call.part is None else result[call.part]


def _value(arg: Any, values: Sequence[Any]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.index]
    if isinstance(arg, Size):
        size = values[arg.index].shape[arg.axis]
        return size if arg.over is None else size > arg.over
    if isinstance(arg, (list, tuple)):
        items = [_value(a, values) for a in cast("Sequence[Any]", arg)]
        return tuple(items) if isinstance(arg, tuple) else items
    return arg


def check_range(call: ModuleCall, values: Sequence[Any]) -> None:
    """Raise `Unspecified` if the result depends on the order in which elements are combined.

    This holds if float64 sums or squares may overflow, or in other types partial products or sums
    with infinite terms.
    """
    if call.fn not in _LARGEST:
        return
    if call.fn == "torch.prod" and _product_depends_on_order(call, values):
        raise Unspecified(call.fn)
    for arg in call.args:
        value = _value(arg, values)
        if isinstance(value, torch.Tensor) and value.dtype is torch.float64:
            size = value.abs()
            large = torch.isfinite(size) & (size > _LARGEST[call.fn])
            if bool(large.any()):
                raise Unspecified(call.fn)
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            size = value.abs().to(torch.float64)
            finite = torch.isfinite(size)
            largest = torch.finfo(value.dtype).max
            if bool(torch.isinf(size).any()) and float(size[finite].sum()) > largest:
                raise Unspecified(call.fn)


def _product_depends_on_order(call: ModuleCall, values: Sequence[Any]) -> bool:
    """Whether some order overflows or underflows before other factors compensate.

    `big` and `small` are the largest and the smallest magnitude of a partial product. Without
    factors below 1 an overflow yields infinity in every order; without factors above 1 an
    underflow yields 0."""
    value = _value(call.args[0], values)
    if not value.is_floating_point():
        return False
    size, range_ = value.abs().to(torch.float64), torch.finfo(value.dtype)
    others = [_value(a, values) for a in call.args[1:]]
    keywords = {k: _value(a, values) for k, a in call.kwargs.items() if k != "dtype"}
    big = torch.prod(size.clamp(min=1), *others, **keywords)
    small = torch.prod(size.clamp(max=1), *others, **keywords)
    nonzero = torch.where(size == 0, 1.0, size).clamp(max=1)
    overflows = (big > range_.max) & (small < 1)
    underflows = (torch.prod(nonzero, *others, **keywords) < range_.tiny) & (big > 1)
    return bool((overflows | underflows).any())


_LARGEST: dict[str, float] = {
    **dict.fromkeys(
        "torch.sum torch.mean torch.cumsum torch.var torch.std torch.matmul F.linear F.conv1d "
        "F.conv2d F.avg_pool1d F.avg_pool2d F.layer_norm F.rms_norm F.normalize".split(),
        1e150,
    ),
    "torch.prod": 1e8,
}
"""Calls that add or multiply many elements → largest finite float64 operand allowed."""


def check_cast(call: ModuleCall, values: Sequence[Any]) -> None:
    """Raise `Unspecified` if a call converts floats to an integer type that cannot hold them."""
    if call.fn not in _CONVERTING and "dtype" not in call.kwargs:
        return
    args = [_value(a, values) for a in call.args]
    target = args[1] if call.fn == "Tensor.to" else call.kwargs.get("dtype", args[0].dtype)
    for source in args:
        if not isinstance(source, torch.Tensor) or not source.is_floating_point():
            continue
        if target.is_floating_point or target is torch.bool:
            continue
        ends = torch.iinfo(target)
        wide = source.to(torch.float64)
        if not bool(((wide > float(ends.min) - 1) & (wide < float(ends.max))).all()):
            raise Unspecified(call.fn)


_CONVERTING = {"Tensor.to", "Tensor.copy_", "operator.setitem"}


def run(
    program: ModuleProgram,
    inputs: Sequence[torch.Tensor],
    chance: torch.Generator | None = None,
    *,
    specified: bool = False,
) -> list[Any]:
    """Evaluate the outputs by PyTorch; with `chance`, with different rounding and zeros.

    Every rounded result is then perturbed by a few ulps, and about half of the calls that round
    compute in float64 internally: `layer_norm` of one element may yield a small number instead of
    0, which a later call compares with 0 or divides by itself. Operands of sums are perturbed by a
    few ulps of the sum's type: the mean of equal numbers need not be that number, and `layer_norm`
    divides the difference by a small one.

    Raises: Unspecified: a cast of floats that do not fit; with `specified`, also a sum of float64
    that may overflow.
    """
    values: list[Any] = list(copied(list(inputs)))
    with torch.no_grad():
        for call in program.calls:
            check_cast(call, values)
            if specified:
                check_range(call, values)
            result = apply(call, values)
            if chance is not None and call.fn in _EITHER_ZERO:
                result = _other_zeros(result, chance)
            if chance is not None and not call.exact:
                result = _moved(_rounded_once(call, values, result, chance), chance)
            values.append(result)
    return [values[i] for i in program.outputs]


_EITHER_ZERO = frozenset(
    "torch.maximum torch.minimum torch.clamp torch.relu F.relu6 F.hardtanh Tensor.relu_ "
    "Tensor.clamp_ torch.amax torch.amin torch.max torch.min F.max_pool1d F.max_pool2d".split()
)
"""Calls whose zeros have a sign that depends on the kernel.

In PyTorch, `maximum(0.0, -0.0)` is the second operand in a vector lane and the first in the scalar
tail of the same loop. A later `atan2` or division makes the difference visible.
"""


def _other_zeros(result: Any, chance: torch.Generator) -> Any:
    """Give the zeros of a tensor random signs, in place."""
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    sign = torch.randint(0, 2, result.shape, generator=chance) * 2.0 - 1
    return result.copy_(torch.where(result == 0, (result * sign.to(result.dtype)), result))


def _rounded_once(
    call: ModuleCall, values: Sequence[Any], result: Any, chance: torch.Generator
) -> Any:
    """The result of a call, randomly recomputed in float64; in-place calls stay as they are."""
    coin = torch.rand((), generator=chance)
    if call.fn.endswith("_") or call.fn == "operator.setitem" or coin < 0.5:
        return result
    if not isinstance(result, torch.Tensor) or not result.is_floating_point():
        return result
    operands = in_float64(list(values))
    if call.fn in _LARGEST and coin < 0.75:
        own = copied(operands)
        operands = [_moved(x, chance, _inside(v)) for x, v in zip(own, values, strict=True)]
    with integers_become_float64():
        wide = apply(call, operands)
        if call.fn in _SUMS and result.dtype is not torch.float64:
            wide = _overflown(wide, apply(call, [_magnitude(x) for x in operands]), chance)
    if call.fn == "F.layer_norm" and coin >= 0.75:  # an element equal to the mean yields 0
        wide = torch.where(wide.abs() < 4 * _inside(result), torch.zeros_like(wide), wide)
    return result.copy_(wide) if wide.shape == result.shape else result


_SUMS = frozenset("torch.matmul F.linear F.conv1d F.conv2d torch.sum torch.cumsum".split())
"""Calls whose result is a sum of operands or of their products."""


def _magnitude(value: Any) -> Any:
    floats = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.abs() if floats else value


def _overflown(wide: torch.Tensor, magnitude: torch.Tensor, chance: torch.Generator) -> Any:
    """Replace sums by NaN at random if some order of their terms overflows in float32.

    Args:
        wide: the sums in float64.
        magnitude: the sums of the terms' magnitudes.
    """
    risky = magnitude > torch.finfo(torch.float32).max
    drawn = torch.rand(wide.shape, generator=chance) < 0.5
    return torch.where(risky & drawn, torch.nan, wide)


def _inside(value: Any) -> float:
    """Rounding unit of a sum's accumulator: half-precision types are summed in float32."""
    wide = isinstance(value, torch.Tensor) and value.dtype is torch.float64
    return torch.finfo(torch.float64 if wide else torch.float32).eps


def _moved(value: Any, chance: torch.Generator, eps: float | None = None) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    noise = torch.rand(value.shape, generator=chance, dtype=torch.float64) * 8 - 4
    factor = 1 + noise * (torch.finfo(value.dtype).eps if eps is None else eps)
    return value.copy_((value.to(torch.float64) * factor).to(value.dtype))


class RandomModule(torch.nn.Module):
    """A torch module that runs the program."""

    def __init__(self, program: ModuleProgram) -> None:
        super().__init__()
        self.program = program
        for index in sorted(program.buffers):
            self.register_buffer(f"b{index}", program.inputs[index].clone())

    def forward(self, *given: torch.Tensor) -> tuple[Any, ...]:
        new = iter(given)
        values: list[Any] = [
            getattr(self, f"b{i}") if i in self.program.buffers else next(new)
            for i in range(len(self.program.inputs))
        ]
        for call in self.program.calls:
            values.append(apply(call, values))
        return tuple(values[i] for i in self.program.outputs)
