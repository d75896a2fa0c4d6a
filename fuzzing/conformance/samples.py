"""Draw samples of an operator for one type: those of PyTorch, and variants of them."""

from __future__ import annotations

import gc
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Any, cast

import msgspec
import torch
from torch.utils import _pytree as pytree

from fuzzing.eager.compare import copied
from fuzzing.eager.special import special_values

DTYPES = {
    str(d)[6:]: d
    for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64,
              torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
}  # fmt: skip
"""The types that samples are drawn in; complex ones have no counterpart."""
MAIN = (torch.float32, torch.int64)
"""Types that get all samples and variants: behavior depends on the kind more than on the width."""
VARIANTS = ("strided", "empty", "in place", "dynamic")
"""Variants of a sample, besides special values."""
UNSPECIFIED = {
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}
"""Operators with unspecified elements: only types and shapes are compared."""
_TAKES_POSITIONS = (
    "index",
    "gather",
    "scatter",
    "take",
    "embedding",
    "one_hot",
    "bincount",
    "shift",
    "narrow",
    "select",
    "pow",
    "ldexp",
    "repeat_interleave",
)
"""Words in the names of operators whose integer arguments must stay in a range."""

_DRAWN = 300
"""Number of samples of an operator to choose from; some operators have thousands."""


class OperatorSample(msgspec.Struct, frozen=True, eq=False):
    """Arguments of an operator; `kind` names the variant of a sample."""

    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [
            x for x in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(x, torch.Tensor)
        ]

    def call(self, tensors: list[Any]) -> Any:
        """The operator's result with other tensors in place of the sample's."""
        flat, spec = pytree.tree_flatten((self.args, self.kwargs))
        given = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(given) if isinstance(x, torch.Tensor) else x for x in flat], spec
        )
        return self.function(*args, **kwargs)

    def replaced(self, kind: str, tensors: list[torch.Tensor]) -> OperatorSample:
        flat, spec = pytree.tree_flatten((self.args, self.kwargs))
        given = iter(tensors)
        args, kwargs = pytree.tree_unflatten(
            [next(given) if isinstance(x, torch.Tensor) else x for x in flat], spec
        )
        return OperatorSample(kind, self.function, args, kwargs)

    @property
    def label(self) -> str:
        """Short text of the arguments: `float32[5, 1], 2, dim=0`."""
        words = [_short(a) for a in self.args]
        words += [f"{key}={_short(value)}" for key, value in self.kwargs.items()]
        return f"{self.kind}: {', '.join(words)}"


def _short(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_short(v) for v in cast("list[Any]", value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return repr(value)[:60]


def samples_of(op: Any, dtype: torch.dtype, most: int) -> list[OperatorSample]:
    """Samples of PyTorch, evenly spaced among all of them, special values, and other variants.

    `MAIN` types get `most` samples and all variants; other types a third of the samples and one
    variant, which depends on type and operator.
    """
    base = _spread(_given(op, dtype), most if dtype in MAIN else max(1, most // 3))
    extra = max(1, most // 6) if dtype in MAIN else 1
    result = [*base, *_extremes(op, base, dtype)]
    variants = _variants(op, dtype)
    if "strided" in variants:
        result += _strided(base, extra)
    if "empty" in variants:
        result += _empty(base, extra)
    if "in place" in variants:
        result += _in_place(op, base, extra)
    return result


def _variants(op: Any, dtype: torch.dtype) -> Sequence[str]:
    """The variants to try for an operator in a type."""
    if dtype in MAIN:
        return VARIANTS
    turn = zlib.crc32(op.full_name.encode()) + list(DTYPES.values()).index(dtype)
    return (VARIANTS[turn % len(VARIANTS)],)


def dynamic_samples_of(op: Any, dtype: torch.dtype, most: int) -> list[OperatorSample]:
    """Samples to run with symbolic sizes, chosen among those with sizes above 1."""
    if "dynamic" not in _variants(op, dtype):
        return []
    if dtype not in MAIN:
        most = 1
    given = _given(op, dtype)
    base = [s for s in given if any(n > 1 for t in s.tensors for n in t.shape)]
    return [s.replaced("dynamic", s.tensors) for s in _spread(base, max(1, most // 4))]


def few_samples_of(op: Any, dtype: torch.dtype, most: int) -> list[OperatorSample]:
    """The first samples of PyTorch, without variants."""
    return _given(op, dtype, most)


def _given(op: Any, dtype: torch.dtype, most: int = _DRAWN) -> list[OperatorSample]:
    """The samples of OpInfo, the same in every run."""
    torch.default_generator.manual_seed(zlib.crc32(f"{op.full_name} {dtype}".encode()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        drawn: Any = op.sample_inputs("cpu", dtype, requires_grad=False)
        given: list[Any] = list(islice(drawn, most))
        _close(drawn)
    return [OperatorSample("sample", op.op, (s.input, *s.args), dict(s.kwargs)) for s in given]


def _close(drawn: Any) -> None:
    """Close OpInfo's generator now.

    Otherwise it ends when it is garbage-collected, and its change of PyTorch's gradient mode
    affects whatever is traced at that time.
    """
    for part in gc.get_referents(getattr(drawn, "child_iter", drawn)):
        if isinstance(part, Generator):
            part.close()


def _spread(samples: list[OperatorSample], most: int) -> list[OperatorSample]:
    if len(samples) <= most:
        return samples
    return [samples[i * len(samples) // most] for i in range(most)]


# -------------------------------------------------------------------------------------- variants
def _extremes(op: Any, base: list[OperatorSample], dtype: torch.dtype) -> Iterator[OperatorSample]:
    """Special values: all of them, or all pairs, for element-wise operators, else sprinkled in."""
    if dtype is torch.bool or (
        not dtype.is_floating_point and any(word in op.name for word in _TAKES_POSITIONS)
    ):
        return
    values = special_values(dtype)
    kinds = {base.__name__ for base in type(op).__mro__}
    first = next((s for s in base if isinstance(s.args[0], torch.Tensor)), None)
    if first is None:
        return
    if "UnaryUfuncInfo" in kinds:
        yield OperatorSample("special", first.function, (values, *first.args[1:]), first.kwargs)
    elif "BinaryUfuncInfo" in kinds:
        n = len(values)
        left, right = values.repeat_interleave(n), values.repeat(n)
        yield OperatorSample("special", first.function, (left, right), {})
        if not dtype.is_floating_point:  # division by 0 or -1 may raise or have no result
            kept = (right != 0) & (right != -1)
            yield OperatorSample("special", first.function, (left[kept], right[kept]), {})
    else:
        for number, sample in enumerate([s for s in base if s.tensors][:2]):
            chance = torch.Generator().manual_seed(number)
            yield sample.replaced(
                "special", [_sprinkled(t, dtype, values, chance) for t in sample.tensors]
            )


def _sprinkled(
    tensor: torch.Tensor, dtype: torch.dtype, values: torch.Tensor, chance: torch.Generator
) -> torch.Tensor:
    """A copy with special values in some places; large finite ones are excluded."""
    if tensor.dtype is not dtype or not tensor.numel():
        return tensor
    if dtype.is_floating_point:
        values = values[~(values.abs() > 1e4) | values.isinf()]
    result = tensor.detach().contiguous().clone()
    flat = result.view(-1)
    count = max(1, flat.numel() // 8)
    where = torch.randint(flat.numel(), (count,), generator=chance)
    flat[where] = values[torch.randint(len(values), (count,), generator=chance)]
    return result


def _strided(base: list[OperatorSample], most: int) -> Iterator[OperatorSample]:
    """Variants with non-contiguous tensors."""
    wanted = [s for s in base if any(t.dim() and t.numel() > 1 for t in s.tensors)]
    for sample in wanted[:most]:
        yield sample.replaced("strided", [with_gaps(t) for t in sample.tensors])


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in non-contiguous memory."""
    if tensor.dim() == 0:
        return tensor
    if tensor.dim() == 1:
        return tensor.repeat_interleave(2)[::2]
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def _empty(base: list[OperatorSample], most: int) -> Iterator[OperatorSample]:
    """Variants in which one size, and every equal size, is 0."""
    result = 0
    for sample in base:
        size = next((n for t in sample.tensors for n in t.shape if n > 1), 0)
        if size and result < most:
            result += 1
            yield sample.replaced(
                "empty",
                [
                    t.new_zeros([0 if n == size else n for n in t.shape]) if size in t.shape else t
                    for t in sample.tensors
                ],
            )


def _in_place(op: Any, base: list[OperatorSample], most: int) -> Iterator[OperatorSample]:
    """Variants with the in-place operator, on a copy of the first argument."""
    change = op.inplace_variant
    if change is None:
        return

    def on_a_copy(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return change(x.clone(), *args, **kwargs)

    wanted = [s for s in base if isinstance(s.args[0], torch.Tensor)]
    for sample in wanted[:most]:
        yield OperatorSample("in place", on_a_copy, copied(sample.args), sample.kwargs)
