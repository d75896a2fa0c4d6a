"""Operator calls of random modules: one function per family, with a weight."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import msgspec
import torch

from fuzzing.modules.program import ModuleCall, Ref, Size


class Draft:
    """A program under construction, with PyTorch's values so far.

    Values are numbered with inputs first. A call may add its weights as inputs; this renumbers the
    results of earlier calls.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.inputs: list[torch.Tensor] = []
        self.buffers: set[int] = set()
        self.calls: list[ModuleCall] = []
        self.values: list[Any] = []

    def add_input(self, tensor: torch.Tensor, buffer: bool) -> None:
        if buffer:
            self.buffers.add(len(self.inputs))
        self.inputs.append(tensor)
        self.values.append(tensor.clone())

    def mark(self) -> int:
        return len(self.inputs)

    def reset(self, mark: int) -> None:
        """Remove weights that a rejected call added."""
        while len(self.inputs) > mark:
            self._drop_input(len(self.inputs) - 1)

    def weight(self, shape: list[int], dtype: torch.dtype, high: int = 0) -> Ref:
        """Add a buffer to the module; with `high`, of integers below it."""
        if len(self.inputs) >= 12 or any(n <= 0 for n in shape):
            raise ValueError("no such weight")
        generator = torch.Generator().manual_seed(self.chance.randrange(1 << 30))
        if high:
            tensor = torch.randint(0, high, shape, generator=generator)
        else:
            tensor = (torch.randint(-8, 9, shape, generator=generator) / 8).to(dtype)
        index = len(self.inputs)
        self._shift(index, 1)
        self.inputs.append(tensor)
        self.buffers.add(index)
        self.values.insert(index, tensor.clone())
        return Ref(index)

    def _drop_input(self, index: int) -> None:
        self.inputs.pop(index)
        self.buffers.discard(index)
        self.values.pop(index)
        self._shift(index + 1, -1)

    def _shift(self, start: int, by: int) -> None:
        """Renumber values from `start` on, and the references to them."""
        self.calls = [shifted(call, start, by) for call in self.calls]

    # ------------------------------------------------------------------------------- choices
    def pick(self, wanted: Callable[[torch.Tensor], bool] = lambda _: True) -> int:
        """Draw the number of a matching value, later ones likelier. Raises ValueError if none."""
        fits = [i for i, v in enumerate(self.values) if wanted(v)]
        if not fits:
            raise ValueError("no value fits")
        return self.chance.choices(fits, [1 + 3 * (i >= len(self.inputs)) for i in fits])[0]

    def axis(self, index: int) -> int:
        rank = self.values[index].dim()
        axis = self.chance.randrange(max(rank, 1))
        return axis - max(rank, 1) if self.chance.random() < 0.5 else axis


def shifted(node: Any, start: int, by: int) -> Any:
    """Renumber the values from `start` on in a call or argument."""
    if isinstance(node, ModuleCall):
        args = shifted(node.args, start, by)
        kwargs = {key: shifted(value, start, by) for key, value in node.kwargs.items()}
        return ModuleCall(node.fn, args, kwargs, node.exact, node.part)
    if isinstance(node, Ref):
        return Ref(node.index + by) if node.index >= start else node
    if isinstance(node, Size):
        return msgspec.structs.replace(node, index=node.index + by) if node.index >= start else node
    if isinstance(node, (list, tuple)):
        items = [shifted(item, start, by) for item in cast("list[Any]", node)]
        return tuple(items) if isinstance(node, tuple) else items
    return node


def _floats(value: torch.Tensor) -> bool:
    return value.is_floating_point()


def _whole(value: torch.Tensor) -> bool:
    return not value.is_floating_point() and value.dtype is not torch.bool


_SMOOTH = (
    "torch.exp torch.tanh torch.sigmoid torch.sqrt torch.rsqrt torch.sin torch.cos torch.log "
    "torch.erf F.silu F.gelu torch.reciprocal torch.square torch.expm1 torch.log1p F.softplus "
    "F.elu F.mish F.hardswish F.hardsigmoid torch.log2 torch.exp2 torch.atan F.selu F.logsigmoid"
).split()
_EXACT = (
    "torch.relu torch.abs torch.neg torch.floor torch.ceil torch.round torch.trunc torch.sign "
    "torch.isnan torch.isinf torch.isfinite torch.logical_not torch.clone F.relu6 F.hardtanh"
).split()
_EXACT_WHOLE = (
    "torch.abs torch.neg torch.sign torch.bitwise_not torch.logical_not torch.square torch.relu"
).split()


def _unary(d: Draft) -> ModuleCall:
    i = d.pick()
    x = d.values[i]
    if _floats(x):
        smooth = d.chance.random() < 0.55
        return ModuleCall(
            d.chance.choice(_SMOOTH if smooth else _EXACT), (Ref(i),), exact=not smooth
        )
    names = _EXACT_WHOLE if _whole(x) else ["torch.logical_not", "torch.bitwise_not"]
    if d.chance.random() < 0.2:  # integers become floats
        return ModuleCall(d.chance.choice(("torch.exp", "torch.sqrt", "torch.tanh")), (Ref(i),))
    return ModuleCall(d.chance.choice(names), (Ref(i),), exact=True)


def _other(d: Draft, i: int) -> Any:
    """A second operand: a value, a constant, or a size."""
    chance = d.chance
    if chance.random() < 0.6:
        return Ref(d.pick(lambda v: _broadcast(v, d.values[i])))
    x = d.values[i]
    if x.dim() and chance.random() < 0.15:
        return _size(d, i)
    numbers = [0, 1, 2, 3, -1, -3, 7, True]
    return chance.choice([*numbers, 0.5, -1.5, 2.0, 0.1] if chance.random() < 0.6 else numbers)


def _size(d: Draft, i: int) -> Size:
    """The size of a random axis; sometimes a condition on it."""
    axis = d.chance.randrange(d.values[i].dim())
    return Size(i, axis, d.chance.randint(0, 6) if d.chance.random() < 0.1 else None)


def _broadcast(a: torch.Tensor, b: torch.Tensor) -> bool:
    pairs = zip(reversed(a.shape), reversed(b.shape), strict=False)
    return all(m == n or 1 in (m, n) for m, n in pairs)


def _arithmetic(d: Draft) -> ModuleCall:
    i = d.pick()
    other = _other(d, i)
    fn = d.chance.choice(
        (
            "add",
            "sub",
            "mul",
            "mul",
            "div",
            "maximum",
            "minimum",
            "pow",
            "atan2",
            "remainder",
            "fmod",
            "floor_divide",
            "div mode",
            "rsub",
        )
    )
    kwargs: dict[str, Any] = {}
    if fn in ("add", "sub") and d.chance.random() < 0.2:
        kwargs["alpha"] = d.chance.choice((2, -1, 3))
    if fn == "div mode":
        fn, kwargs["rounding_mode"] = "div", d.chance.choice(("floor", "trunc"))
    if fn in ("remainder", "fmod", "floor_divide") or "rounding_mode" in kwargs:
        _safe_divisor(d, i, other)
    swap = isinstance(other, Ref) and d.chance.random() < 0.3 and fn not in _DIVISIONS
    args = (other, Ref(i)) if swap else (Ref(i), other)
    return ModuleCall(f"torch.{fn}", args, kwargs, exact=fn in ("maximum", "minimum"))


_DIVISIONS = ("remainder", "fmod", "floor_divide", "div")


def _safe_divisor(d: Draft, i: int, other: Any) -> None:
    """Avoid the smallest integer divided by -1, which crashes PyTorch."""
    x = d.values[i]
    if isinstance(other, Ref) and not _floats(x) and not _floats(d.values[other.index]):
        y = d.values[other.index].to(torch.int64)
        if bool(((y == 0) | (y == -1)).any()):
            raise ValueError("divisor")
    elif not isinstance(other, Ref) and other in (0, -1) and not _floats(x):
        raise ValueError("divisor")


def _comparison(d: Draft) -> ModuleCall:
    i = d.pick()
    name = d.chance.choice(("eq", "ne", "lt", "le", "gt", "ge"))
    return ModuleCall(f"torch.{name}", (Ref(i), _other(d, i)), exact=True)


def _bits(d: Draft) -> ModuleCall:
    name = d.chance.choice(
        ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor")
    )
    i = d.pick((lambda _: True) if "logical" in name else (lambda v: not _floats(v)))
    j = d.pick(lambda v: _broadcast(v, d.values[i]))
    return ModuleCall(f"torch.{name}", (Ref(i), Ref(j)), exact=True)


_REDUCTIONS = (
    "sum sum mean amax amin prod any all argmax argmin cumsum var std logsumexp max min"
).split()
_IN_PLACE = (
    "add_ mul_ sub_ relu_ clamp_ copy_ fill_ zero_ masked_fill_ setitem setitem neg_ exp_ div_"
).split()


def _reduction(d: Draft) -> ModuleCall:
    name = d.chance.choice(_REDUCTIONS)
    i = d.pick(_floats if name in ("mean", "var", "std", "logsumexp") else lambda _: True)
    exact = name in ("amax", "amin", "any", "all", "argmax", "argmin", "max", "min")
    if name == "cumsum":
        return ModuleCall("torch.cumsum", (Ref(i), d.axis(i)), _summed_as(d, name))
    if name in ("max", "min"):
        return ModuleCall(f"torch.{name}", (Ref(i),), exact=True)
    kwargs = _summed_as(d, name) if name in ("sum", "prod") else {}
    if name in ("sum", "amax", "amin", "any", "all") and d.chance.random() < 0.05:
        kwargs["dim"] = ()
    elif name == "logsumexp" or d.chance.random() < 0.8:
        kwargs["dim"] = d.axis(i)
        kwargs["keepdim"] = d.chance.random() < 0.4
    rank = d.values[i].dim()
    if (
        kwargs.get("dim", ()) != ()
        and rank > 1
        and name in ("sum", "mean", "amax")
        and d.chance.random() < 0.3
    ):
        kwargs["dim"] = d.chance.sample(range(rank), 2)
    return ModuleCall(f"torch.{name}", (Ref(i),), kwargs, exact=exact)


def _summed_as(d: Draft, name: str) -> dict[str, Any]:
    """Keyword for the type that elements are converted to before the reduction."""
    if d.chance.random() < 0.75:
        return {}
    kinds = [torch.int64, torch.int32, torch.uint8]
    if name != "cumsum":
        kinds += [torch.bool, torch.bool]
    if name != "prod":  # whether a product overflows would depend on the order
        kinds += [torch.float32, torch.float64, torch.float16]
    return {"dtype": d.chance.choice(kinds)}


def _view(d: Draft) -> ModuleCall:
    i = d.pick()
    x, chance = d.values[i], d.chance
    rank = x.dim()
    kind = chance.choice(
        (
            "flatten",
            "transpose",
            "permute",
            "unsqueeze",
            "squeeze",
            "reshape",
            "expand",
            "flip",
            "roll",
            "narrow",
            "repeat",
        )
    )
    if kind == "flatten":
        return ModuleCall("torch.flatten", (Ref(i),), exact=True)
    if kind == "transpose":
        return ModuleCall("torch.transpose", (Ref(i), d.axis(i), d.axis(i)), exact=True)
    if kind == "permute":
        return ModuleCall(
            "torch.permute", (Ref(i), tuple(chance.sample(range(rank), rank))), exact=True
        )
    if kind == "unsqueeze":
        return ModuleCall("torch.unsqueeze", (Ref(i), chance.randint(-rank - 1, rank)), exact=True)
    if kind == "squeeze":
        return ModuleCall("torch.squeeze", (Ref(i),), exact=True)
    if kind == "reshape":
        front = chance.randint(0, rank)
        sizes = [Size(i, axis) for axis in range(front)]
        return ModuleCall("torch.reshape", (Ref(i), (*sizes, -1)), exact=True)
    if kind == "expand":
        return ModuleCall("Tensor.expand", (Ref(i), chance.randint(1, 3), *[-1] * rank), exact=True)
    if kind == "repeat":
        return ModuleCall(
            "Tensor.repeat", (Ref(i), *[chance.randint(1, 2) for _ in range(rank)]), exact=True
        )
    if kind == "narrow":
        axis = d.axis(i)
        start = chance.randint(0, max(x.shape[axis] - 1, 0)) if rank else 0
        return ModuleCall("torch.narrow", (Ref(i), axis, start, 1), exact=True)
    if kind == "roll":
        return ModuleCall("torch.roll", (Ref(i), chance.randint(-3, 3), d.axis(i)), exact=True)
    return ModuleCall("torch.flip", (Ref(i), (d.axis(i),)), exact=True)


def index_of(d: Draft, x: torch.Tensor) -> Any:
    """An index such as `x[1:, ..., None, -1]`, also with bounds beyond the axis."""
    chance = d.chance
    parts: list[Any] = []
    for n in x.shape[: chance.randint(1, max(x.dim(), 1))]:
        if chance.random() < 0.25 and n:
            parts.append(chance.randrange(-n, n))
            continue
        ends = [None, None, 0, 1, -1, n // 2, -n - 2, n + 3, -n + 1]
        parts.append(
            slice(chance.choice(ends), chance.choice(ends), chance.choice((None, 1, 2, 3)))
        )
    if chance.random() < 0.15:
        parts.insert(chance.randint(0, len(parts)), None)
    if chance.random() < 0.15:
        parts.insert(chance.randint(0, len(parts)), ...)
    return tuple(parts) if len(parts) != 1 else parts[0]


def _slice(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: v.dim() > 0)
    return ModuleCall("operator.getitem", (Ref(i), index_of(d, d.values[i])), exact=True)


def _gather(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: v.dim() > 0)
    x = d.values[i]
    axis = d.chance.randrange(x.dim())
    n = x.shape[axis]
    kind = d.chance.choice(("index_select", "getitem", "gather", "take_along_dim"))
    if kind == "index_select":
        ids = d.weight([d.chance.randint(1, 5)], torch.int64, n)
        return ModuleCall("torch.index_select", (_again(i, ids), axis, ids), exact=True)
    if kind == "getitem":
        ids = d.weight([d.chance.randint(1, 4)] * d.chance.randint(1, 2), torch.int64, n)
        return ModuleCall(
            "operator.getitem", (_again(i, ids), (*[slice(None)] * axis, ids)), exact=True
        )
    shape = [m if k != axis else d.chance.randint(1, 5) for k, m in enumerate(x.shape)]
    ids = d.weight(shape, torch.int64, n)
    if kind == "take_along_dim":
        return ModuleCall("torch.take_along_dim", (_again(i, ids), ids, axis), exact=True)
    return ModuleCall("torch.gather", (_again(i, ids), axis, ids), exact=True)


def _again(i: int, weight: Ref) -> Ref:
    """Reference to a value chosen before a weight was added."""
    return Ref(i + 1) if i >= weight.index else Ref(i)


def _join(d: Draft) -> ModuleCall:
    i = d.pick()
    x, chance = d.values[i], d.chance
    if chance.random() < 0.5 and x.dim():
        axis = chance.randrange(x.dim())
        rest = [*x.shape[:axis], *x.shape[axis + 1 :]]
        more = [
            d.pick(lambda v: v.dim() == x.dim() and [*v.shape[:axis], *v.shape[axis + 1 :]] == rest)
            for _ in range(chance.randint(1, 2))
        ]
        return ModuleCall("torch.cat", ([Ref(i), *map(Ref, more)], axis), exact=True)
    more = [d.pick(lambda v: v.shape == x.shape) for _ in range(chance.randint(1, 2))]
    return ModuleCall(
        "torch.stack", ([Ref(i), *map(Ref, more)], chance.randint(0, x.dim())), exact=True
    )


def _where(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: v.dtype is torch.bool)
    j = d.pick(lambda v: _broadcast(v, d.values[i]))
    if d.chance.random() < 0.4:
        value = d.chance.choice((0, 1, -1, 0.5, float("-inf"), True))
        return ModuleCall("torch.masked_fill", (Ref(j), Ref(i), value), exact=True)
    return ModuleCall("torch.where", (Ref(i), Ref(j), _other(d, j)), exact=True)


def _clamp(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: v.dtype is not torch.bool)
    bounds: tuple[Any, Any] = d.chance.choice(
        ((0, None), (None, 2), (-1, 1), (3, -3), (-0.5, 0.5), (0, 255))
    )
    if d.values[i].dim() and d.chance.random() < 0.15:
        bounds = d.chance.choice(((_size(d, i), None), (0, _size(d, i))))
    return ModuleCall("torch.clamp", (Ref(i), *bounds), exact=True)


def _matmul(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: _floats(v) and v.dim() > 0)
    x = d.values[i]
    if d.chance.random() < 0.5:
        out = d.chance.choice((1, 3, 8, 17))
        w = d.weight([out, x.shape[-1]], x.dtype)
        return ModuleCall("F.linear", (_again(i, w), w))
    j = d.pick(
        lambda v: v.dtype is x.dtype and v.dim() > 0 and v.shape[-min(v.dim(), 2)] == x.shape[-1]
    )
    return ModuleCall("torch.matmul", (Ref(i), Ref(j)))


def _norm(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: _floats(v) and v.dim() > 0)
    x = d.values[i]
    kind = d.chance.choice(("softmax", "log_softmax", "layer_norm", "rms_norm", "normalize"))
    if kind in ("softmax", "log_softmax"):
        return ModuleCall(f"torch.{kind}", (Ref(i), d.axis(i)))
    if kind == "normalize":
        return ModuleCall("F.normalize", (Ref(i),), {"dim": d.axis(i)})
    return ModuleCall(f"F.{kind}", (Ref(i), (x.shape[-1],)))


def _window(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: _floats(v) and v.dim() in (3, 4) and 0 not in v.shape)
    x, chance = d.values[i], d.chance
    rank = x.dim() - 2
    kind = chance.choice(("conv", "max_pool", "avg_pool"))
    size = chance.choice((1, 2, 3))
    if kind == "conv":
        w = d.weight([chance.choice((1, 4, 5)), x.shape[1], *[size] * rank], x.dtype)
        padding, stride = chance.randint(0, 1), chance.randint(1, 2)
        kwargs = {"padding": padding, "stride": stride}
        return ModuleCall(f"F.conv{rank}d", (_again(i, w), w), kwargs)
    return ModuleCall(
        f"F.{kind}{rank}d",
        (Ref(i), size),
        {"stride": chance.randint(1, 2)},
        exact=kind == "max_pool",
    )


def _cast(d: Draft) -> ModuleCall:
    i = d.pick()
    dtype = d.chance.choice(
        (
            torch.float32,
            torch.float32,
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int32,
            torch.uint8,
            torch.bool,
        )
    )
    return ModuleCall("Tensor.to", (Ref(i), dtype), exact=True)


def _create(d: Draft) -> ModuleCall:
    i = d.pick()
    name = d.chance.choice(("zeros_like", "ones_like", "full_like", "tril", "triu", "pad"))
    if name == "full_like":
        return ModuleCall("torch.full_like", (Ref(i), d.chance.choice((0, 1, 2))), exact=True)
    if name in ("tril", "triu"):
        return ModuleCall(f"torch.{name}", (Ref(i), d.chance.randint(-2, 2)), exact=True)
    if name == "pad":
        return ModuleCall(
            "F.pad", (Ref(i), (d.chance.randint(-1, 2), d.chance.randint(0, 2))), exact=True
        )
    return ModuleCall(f"torch.{name}", (Ref(i),), exact=True)


def _in_place(d: Draft) -> ModuleCall:
    first = 0 if d.chance.random() < 0.05 else len(d.inputs)
    return _changed(d, d.pick(lambda v: any(v is w for w in d.values[first:])))


def _state(d: Draft) -> ModuleCall:
    """Change a buffer of the module, which the next call sees."""
    return _changed(d, d.chance.choice(sorted(d.buffers))) if d.buffers else _in_place(d)


def _changed(d: Draft, i: int) -> ModuleCall:
    x, chance = d.values[i], d.chance
    kind = chance.choice(_IN_PLACE)
    if kind == "setitem":
        index = index_of(d, x) if x.dim() else ...
        value: Any = chance.choice((0, 1, 2.5, -1))
        if chance.random() < 0.4:
            value = Ref(d.pick(lambda v: v.dim() == 0 or _broadcast(v, x)))
        return ModuleCall("operator.setitem", (Ref(i), index, value), exact=True)
    args: tuple[Any, ...] = ()
    if kind in ("add_", "mul_", "sub_", "copy_", "div_"):
        args = (
            Ref(d.pick(lambda v: _broadcast(v, x)))
            if chance.random() < 0.7 or kind == "copy_"
            else chance.choice((1, 2, 0.5)),
        )
    elif kind == "masked_fill_":
        args = (Ref(d.pick(lambda v: v.dtype is torch.bool and _broadcast(v, x))), 1)
    elif kind == "clamp_":
        args = (-1, 2)
    elif kind == "fill_":
        args = (3,)
    exact = kind in ("relu_", "clamp_", "fill_", "zero_", "masked_fill_", "neg_")
    return ModuleCall(f"Tensor.{kind}", (Ref(i), *args), exact=exact)


def _part(d: Draft) -> ModuleCall:
    i = d.pick(lambda v: v.dim() > 0)
    kind = d.chance.choice(("chunk", "split", "max", "min"))
    if kind in ("max", "min"):
        return ModuleCall(
            f"torch.{kind}", (Ref(i), d.axis(i)), exact=True, part=d.chance.randint(0, 1)
        )
    return ModuleCall(
        f"torch.{kind}",
        (Ref(i), d.chance.randint(1, 3), d.axis(i)),
        exact=True,
        part=d.chance.randint(0, 2),
    )


CALLS: dict[Callable[[Draft], ModuleCall], int] = {
    _unary: 12, _arithmetic: 16, _comparison: 5, _bits: 4, _reduction: 10, _view: 12, _slice: 6,
    _gather: 4, _join: 5, _where: 5, _clamp: 3, _matmul: 5, _norm: 5, _window: 4, _cast: 6,
    _create: 3, _in_place: 8, _part: 4, _state: 8,
}  # fmt: skip
"""Family of calls → weight."""
