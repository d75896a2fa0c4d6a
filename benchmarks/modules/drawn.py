"""Random operators as PyTorch modules, for `sweep`.

Sizes are log-uniform, from one on: tables of well-known cases leave out small, odd and lopsided
ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.export import Dim

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_MOST = 4e9
"""Most operations of a case: larger cases are drawn again, because other tables cover them."""


@dataclass(frozen=True)
class Drawn:
    """A module, its inputs and its name.

    `fixed` lists axes, counted from the last, whose size is part of the operator.
    """

    name: str
    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    fixed: tuple[int, ...] = ()

    @property
    def dynamic_shapes(self) -> Any:
        """For an export: all sizes are dynamic that the module leaves open."""
        axes = tuple(
            {
                axis: Dim.AUTO
                for axis, size in enumerate(tensor.shape)
                if size > 1 and axis - tensor.ndim not in self.fixed
            }
            for tensor in self.inputs
        )
        return {"inputs": axes} if isinstance(self.module, _Call | _Chain) else axes


class _Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def draw(random: Random) -> Drawn:
    """An operator of a random kind."""
    return random.choice(KINDS)(random)


def _size(random: Random, low: float, high: float) -> int:
    """Random integer, log-uniform between two powers of two."""
    return int(2 ** random.uniform(low, high))


def _linear(random: Random) -> Drawn:
    rows, columns, depth = (_size(random, low, 11) for low in (0, 0, 2))
    name = f"linear {rows}x{depth}x{columns}"
    return Drawn(name, nn.Linear(depth, columns), (torch.randn(rows, depth),))


def _product(random: Random) -> Drawn:
    rows, columns, depth = (_size(random, low, 11) for low in (0, 0, 2))
    left, right = random.random() < 0.3, random.random() < 0.3
    shapes = (
        (depth, rows) if left else (rows, depth),
        (columns, depth) if right else (depth, columns),
    )
    name = f"product {rows}x{depth}x{columns}{', A^T' * left}{', B^T' * right}"
    call = _Call(lambda a, b: (a.T if left else a) @ (b.T if right else b))
    return Drawn(name, call, tuple(torch.randn(*shape) for shape in shapes))


def _batched(random: Random) -> Drawn:
    batch, rows, columns, depth = (
        _size(random, *ends) for ends in ((0, 6), (0, 8), (0, 8), (1, 8))
    )
    turned = random.random() < 0.5
    name = f"batched product {batch}x{rows}x{depth}x{columns}{', B^T' * turned}"
    call = _Call(lambda a, b: a @ (b.transpose(-1, -2) if turned else b))
    other = (batch, columns, depth) if turned else (batch, depth, columns)
    return Drawn(name, call, (torch.randn(batch, rows, depth), torch.randn(*other)))


def _convolution(random: Random) -> Drawn:
    kernel, stride = random.choice([1, 1, 3, 3, 5, 7]), random.choice([1, 1, 2])
    dilation, groups = random.choice([1, 1, 1, 2]), random.choice([1, 1, 1, 2, 4])
    channels, filters = (groups * _size(random, 0, 7) for _ in range(2))
    side, batch = max(kernel, _size(random, 2, 7)), random.choice([1, 1, 4])
    if 2 * batch * channels * filters // groups * kernel**2 * side**2 > _MOST:
        return _convolution(random)
    module = nn.Conv2d(
        channels, filters, kernel, stride, dilation * (kernel // 2), dilation, groups
    )
    name = (
        f"convolution {batch}x{channels}x{side}x{side}, {filters} of {kernel}x{kernel}, "
        f"s{stride} d{dilation} g{groups}"
    )
    return Drawn(name, module, (torch.randn(batch, channels, side, side),))


def _depthwise(random: Random) -> Drawn:
    channels, kernel, stride = _size(random, 2, 9), random.choice([3, 5, 7]), random.choice([1, 2])
    side = max(kernel, _size(random, 2, 7))
    module = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels)
    name = f"depthwise {channels}x{side}x{side} k{kernel} s{stride}"
    return Drawn(name, module, (torch.randn(1, channels, side, side),))


def _transposed(random: Random) -> Drawn:
    channels, filters, side = (_size(random, *ends) for ends in ((2, 8), (0, 8), (2, 6)))
    kernel, stride = random.choice([(2, 2), (3, 2), (4, 2), (3, 1)])
    module = nn.ConvTranspose2d(channels, filters, kernel, stride, kernel // 2 if kernel > 2 else 0)
    name = f"transposed {channels}x{side}x{side}, {filters} of {kernel}x{kernel} s{stride}"
    return Drawn(name, module, (torch.randn(1, channels, side, side),))


def _line(random: Random) -> Drawn:
    channels, filters, length = (_size(random, *ends) for ends in ((0, 8), (0, 8), (3, 11)))
    kernel = random.choice([1, 3, 5, 9])
    module = nn.Conv1d(channels, filters, kernel, padding=kernel // 2)
    name = f"convolution 2x{channels}x{length}, {filters} of {kernel}"
    return Drawn(name, module, (torch.randn(2, channels, length),))


def _norm(random: Random) -> Drawn:
    rows, columns = _size(random, 0, 11), _size(random, 1, 12)
    kind = random.choice(["layer norm", "softmax", "instance norm", "group norm"])
    if kind == "layer norm":
        return Drawn(
            f"{kind} {rows}x{columns}", nn.LayerNorm(columns), (torch.randn(rows, columns),)
        )
    if kind == "softmax":
        axis = random.choice([0, 1])
        return Drawn(
            f"{kind} {rows}x{columns} over axis {axis}",
            nn.Softmax(axis),
            (torch.randn(rows, columns),),
        )
    channels, side = 8 * _size(random, 0, 5), _size(random, 1, 6)
    module = nn.GroupNorm(8, channels) if kind == "group norm" else nn.InstanceNorm2d(channels)
    return Drawn(
        f"{kind} 2x{channels}x{side}x{side}", module, (torch.randn(2, channels, side, side),)
    )


def _reduction(random: Random) -> Drawn:
    shape = [_size(random, 0, 7) for _ in range(3)]
    axes = random.choice([(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
    kind = random.choice(["sum", "mean", "amax"])
    return Drawn(
        f"{kind} of {'x'.join(map(str, shape))} over {axes}",
        _Call(lambda x: getattr(x, kind)(axes)),
        (torch.randn(*shape),),
    )


_ELEMENTWISE: dict[str, Callable[[Any, Any], Any]] = {
    "gelu + y": lambda x, y: nn.functional.gelu(x) + y,
    "sigmoid * y": lambda x, y: torch.sigmoid(x) * y,
    "tanh(x + y)": lambda x, y: torch.tanh(x + y),
    "where": lambda x, y: torch.where(x > y, x, -y),
    "exp / (1 + y²)": lambda x, y: torch.exp(x).clamp(max=3) / (y * y + 1),
}


def _elementwise(random: Random) -> Drawn:
    shape = [_size(random, 0, 7) for _ in range(3)]
    other = [n if random.random() < 0.7 else 1 for n in shape]
    kind = random.choice([*_ELEMENTWISE])
    name = f"{kind} of {'x'.join(map(str, shape))} and {'x'.join(map(str, other))}"
    return Drawn(name, _Call(_ELEMENTWISE[kind]), (torch.randn(*shape), torch.randn(*other)))


def _movement(random: Random) -> Drawn:
    shape = [_size(random, 0, 7) for _ in range(4)]
    text, kind = "x".join(map(str, shape)), random.choice(["permute", "concatenate", "pad"])
    if kind == "permute":
        order = random.sample(range(4), 4)
        call = _Call(lambda x: x.permute(order) * 1.0)
        return Drawn(f"permute {text} to {order}", call, (torch.randn(*shape),))
    if kind == "pad":
        pads = _Call(lambda x: nn.functional.pad(x, (1, 2, 0, 3)))
        return Drawn(f"pad {text}", pads, (torch.randn(*shape),))
    axis = random.randrange(4)
    joined = _Call(lambda x, y: torch.cat([x, y, x], axis))
    return Drawn(
        f"concatenate {text} along {axis}", joined, (torch.randn(*shape), torch.randn(*shape))
    )


def _pool(random: Random) -> Drawn:
    channels, (kernel, stride) = (
        _size(random, 1, 8),
        random.choice([(2, 2), (3, 2), (3, 1), (7, 7)]),
    )
    side = max(kernel, _size(random, 3, 7))
    kind = random.choice([nn.MaxPool2d, nn.AvgPool2d, None])
    pad = kernel // 2 if kernel < 7 else 0
    module = nn.AdaptiveAvgPool2d(1) if kind is None else kind(kernel, stride, pad)
    name = f"{type(module).__name__} {channels}x{side}x{side} k{kernel} s{stride}"
    return Drawn(name, module, (torch.randn(1, channels, side, side),))


def _embedding(random: Random) -> Drawn:
    words, width, many = (_size(random, *ends) for ends in ((4, 12), (2, 10), (0, 9)))
    positions = torch.tensor([[random.randrange(words) for _ in range(many)] for _ in range(2)])
    return Drawn(f"embedding 2x{many} of {words}x{width}", nn.Embedding(words, width), (positions,))


def _attention(random: Random) -> Drawn:
    heads, rows, keys, head = (_size(random, *ends) for ends in ((0, 4), (0, 9), (0, 9), (2, 7)))
    causal = random.random() < 0.4
    keys = rows if causal else keys
    attend = nn.functional.scaled_dot_product_attention
    call = _Call(lambda q, kv: attend(q, kv[0], kv[1], is_causal=causal))
    name = f"attention {heads}x{rows}x{head}, {keys} keys{', causal' * causal}"
    inputs = torch.randn(1, heads, rows, head), torch.randn(2, 1, heads, keys, head)
    return Drawn(name, call, inputs, fixed=(-1,))


class _Chain(nn.Module):
    """Functions before and after a module."""

    def __init__(
        self, before: Callable[[Any], Any], module: nn.Module, behind: list[Callable[[Any], Any]]
    ) -> None:
        super().__init__()
        self.before, self.module, self.behind = before, module, behind

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        first, *others = inputs
        result = self.module(self.before(first), *others)
        for function in self.behind:
            result = function(result)
        return result


_BEFORE: dict[str, Callable[[Any], Any]] = {
    "": lambda x: x,
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "scaled": lambda x: x * 0.5 + 1,
    "turned": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}
_BEHIND: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "x + tanh(x)": lambda x: x + torch.tanh(x),
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax over the first": lambda x: torch.softmax(x, 0),
    "normalised": lambda x: nn.functional.layer_norm(x, x.shape[-1:]),
    "sum of squares": lambda x: (x * x).sum(-1),
    "mean of the first": lambda x: x.mean(0, keepdim=True),
    "turned": lambda x: x.transpose(0, -1),
    "less half its mean": lambda x: x - x.mean(-1, keepdim=True) / 2,
    "flat": lambda x: x.reshape(-1),
    "joined": lambda x: torch.cat([x, x * 2], -1),
    "half": lambda x: x[..., : (x.shape[-1] + 1) // 2],
}


_FEWER_AXES = ("sum of squares", "flat")  # too few, perhaps, for the next function


def _chain(random: Random) -> Drawn:
    """One of the other kinds with functions around it, some of which may be fused with it."""
    one = random.choice(_ALONE)(random)
    if not one.module(*one.inputs).ndim:
        return _chain(random)
    before = random.choice([*_BEFORE]) if one.inputs[0].is_floating_point() else ""
    behind = [random.choice([*_BEHIND]) for _ in range(random.choice([1, 1, 2]))]
    if behind[0] in _FEWER_AXES:
        del behind[1:]
    chain = _Chain(_BEFORE[before], one.module, [_BEHIND[name] for name in behind])
    name = ", ".join(filter(None, [before, one.name, *behind]))
    return Drawn(name, chain, one.inputs, one.fixed)


_ALONE: tuple[Callable[[Random], Drawn], ...] = (
    _linear, _linear, _product, _product, _batched, _convolution, _convolution, _depthwise,
    _transposed, _line, _norm, _norm, _reduction, _elementwise, _movement, _pool, _embedding,
    _attention,
)  # fmt: skip
KINDS = (*_ALONE, *[_chain] * len(_ALONE))
"""Half of the cases are chains."""
