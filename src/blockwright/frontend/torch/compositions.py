"""Decompositions of operators that PyTorch does not decompose, or not in functional form.

Each composes other operators, with the arguments and results of its overload. They run on the
exporter's tensors, so they may ask for shapes, types and strides, but not for elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

Table = dict[str, Callable[..., Any]]
COMPOSITIONS: Table = {}
"""Overload → composition."""


def in_place_kernels() -> dict[Any, Callable[..., Any]]:
    """In-place composite operators → kernels to trace instead of PyTorch's.

    PyTorch's own kernels use `as_strided`, which has no functional form here.
    """
    import torch

    return {torch.ops.aten.fill_diagonal_.default: _fill_diagonal}


def composes(table: Table, *names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: add a composition of these overloads to a table."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        table.update(dict.fromkeys(names, fn))
        return fn

    return register


_composes = functools.partial(composes, COMPOSITIONS)


@_composes("aten.diagonal_scatter.default")
def _diagonal_scatter(x: Any, diagonal: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """`x` with its diagonal replaced; PyTorch's own decomposition writes in place."""
    import torch
    from torch.nn.functional import pad

    matrices = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = matrices.shape[-2:]
    first = max(-offset, 0)
    result = pad(diagonal, (first, rows - first - diagonal.shape[-1])).unsqueeze(-1)
    row = torch.arange(rows, device=x.device).unsqueeze(-1)
    inside = torch.arange(columns, device=x.device) == row + offset
    return torch.where(inside, result, matrices).movedim((-2, -1), (dim1, dim2))


def _fill_diagonal(x: Any, value: Any, wrap: bool = False) -> Any:
    """Write a number to the diagonal of a matrix, or of a cube of more axes."""
    import torch

    places = [
        torch.arange(size, device=x.device).reshape([-1] + [1] * (x.ndim - axis - 1))
        for axis, size in enumerate(x.shape)
    ]
    row, *others = places
    if wrap and x.ndim == 2:  # below a tall matrix's diagonal, a row is left out before the next
        inside = (others[0] - row) % (x.shape[1] + 1) == 0
    else:
        inside = functools.reduce(torch.logical_and, [place == row for place in others])
    number = torch.full((), value, dtype=x.dtype, device=x.device)
    return x.copy_(torch.where(inside, number, x))


# ------------------------------------------------------------------------------------- distances
def _norm(difference: Any, p: float) -> Any:
    """The p-norm along the last axis."""
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (difference * difference).sum(-1).sqrt()
    if math.isinf(p):
        return size.amax(-1) if difference.shape[-1] else size.sum(-1)
    return size.pow(p).sum(-1).pow(1 / p)


@_composes("aten._cdist_forward.default")
def _cdist(x: Any, y: Any, p: float, compute_mode: int | None) -> Any:
    return _norm(x.unsqueeze(-2) - y.unsqueeze(-3), p)


@_composes("aten._pdist_forward.default")
def _pdist(x: Any, p: float = 2.0) -> Any:
    import torch

    count = x.shape[0]
    pairs = torch.triu_indices(count, count, 1, device=x.device)
    return _norm(x[pairs[0]] - x[pairs[1]], p)


@_composes("aten._trilinear.default")
def _trilinear(
    x: Any,
    weight: Any,
    y: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    parts: list[Any] = []
    for part, axes in ((x, expand1), (weight, expand2), (y, expand3)):
        whole = part
        for axis in sorted(axes):
            whole = whole.unsqueeze(axis)
        parts.append(whole)
    product = parts[0] * parts[1] * parts[2]
    return product.sum(list(sumdim)) if sumdim else product


# ------------------------------------------------------------------------------------- positions
@_composes("aten.as_strided.default")
def _as_strided(
    x: Any, size: Sequence[Any], stride: Sequence[Any], storage_offset: Any = None
) -> Any:
    """Elements at computed places of a contiguous tensor."""
    import torch

    if not x.is_contiguous():
        raise NotImplementedError("as_strided of a tensor that is not contiguous")
    place: Any = (storage_offset or 0) - x.storage_offset()
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        offsets = torch.arange(count, device=x.device) * step
        place = place + offsets.reshape([-1] + [1] * (len(size) - axis - 1))
    if not size:
        return x.reshape(-1)[place]
    return x.reshape(-1)[place.expand(list(size))]


@_composes("aten.put.default")
def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


@_composes("aten.index_reduce.default")
def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    if not x.ndim:
        flat = x.reshape(1).index_reduce(
            0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        )
        return flat.reshape(())
    shape = [1] * x.ndim
    shape[dim] = -1
    places = index.reshape(shape).expand_as(source)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


@_composes("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """Sums, means or maxima of bags of rows; the results that only gradients need are empty."""
    import torch

    bags = offsets.shape[0] - int(include_last_offset)
    first = offsets[:bags]
    place = torch.arange(indices.shape[0], device=indices.device, dtype=offsets.dtype)
    bag = torch.searchsorted(first, place, right=True) - 1
    rows = weight[indices]
    used = torch.ones_like(bag) if padding_idx < 0 else (indices != padding_idx).to(bag.dtype)
    sizes = torch.zeros_like(first, dtype=bag.dtype).index_add(0, bag, used)
    result = rows.new_zeros((bags, weight.shape[1]))
    if mode == 2:
        places = bag.unsqueeze(1).expand_as(rows)
        if padding_idx >= 0:
            rows = torch.where(used.unsqueeze(1) > 0, rows, -math.inf)
        result = result.scatter_reduce(0, places, rows, "amax", include_self=False)
        result = torch.where(sizes.unsqueeze(1) > 0, result, 0)
    else:
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(1)
        if padding_idx >= 0:
            rows = rows * used.unsqueeze(1).to(rows.dtype)
        result = result.index_add(0, bag, rows)
        if mode == 1:
            result = result / sizes.clamp(min=1).unsqueeze(1).to(result.dtype)
    empty = indices.new_zeros((0,))
    return result, empty, sizes.to(indices.dtype), empty


# -------------------------------------------------------------------------------------- gradients
@_composes(
    "aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default"
)
def _max_pool_backward(
    grad: Any,
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Any,
) -> Any:
    """Each element of the gradient is added at the place of its window's maximum."""
    first = -len(kernel_size)
    flat = x.new_zeros(x.shape).flatten(first)
    return flat.scatter_add(-1, indices.flatten(first), grad.flatten(first)).reshape(x.shape)


def _adaptive_avg_pool_backward(grad: Any, x: Any, rank: int) -> Any:
    """Each element of the gradient, divided by the size of its window, is added to the window."""
    import torch

    for axis in range(-rank, 0):
        steps, extent, rest = grad.shape[axis], x.shape[axis], [1] * (-axis - 1)
        step = torch.arange(steps, device=x.device).unsqueeze(1)
        begin, end = step * extent // steps, ((step + 1) * extent + steps - 1) // steps
        place = torch.arange(extent, device=x.device)
        inside = ((place >= begin) & (place < end)).reshape(steps, extent, *rest)
        size = (end - begin).to(grad.dtype).reshape(steps, 1, *rest)
        grad = torch.where(inside, grad.unsqueeze(axis) / size, 0).sum(axis - 1)
    return grad


@_composes("aten._adaptive_avg_pool2d_backward.default")
def _adaptive_avg_pool2d_backward(grad: Any, x: Any) -> Any:
    return _adaptive_avg_pool_backward(grad, x, 2)


@_composes("aten._adaptive_avg_pool3d_backward.default")
def _adaptive_avg_pool3d_backward(grad: Any, x: Any) -> Any:
    return _adaptive_avg_pool_backward(grad, x, 3)


# ------------------------------------------------------------------------------------- statistics
@_composes("aten.nanmedian.dim")
def _nanmedian_along(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower median of the numbers of each line; NaN if there are none."""
    if not x.ndim:
        return x.clone(), x.new_zeros((), dtype=_int64())
    values, order = x.sort(dim)
    numbers = (~x.isnan()).sum(dim, keepdim=True)
    middle = ((numbers - 1) // 2).clamp(min=0)
    found = values.gather(dim, middle), order.gather(dim, middle)
    return found if keepdim else tuple(v.squeeze(dim) for v in found)


@_composes("aten.nanmedian.default")
def _nanmedian(x: Any) -> Any:
    return _nanmedian_along(x.reshape(-1), 0)[0]


def _int64() -> Any:
    import torch

    return torch.int64


@_composes("aten.angle.default")
def _angle(x: Any) -> Any:
    """0 or π by the sign of a real number; NaN of NaN."""
    import torch

    if x.is_complex():
        raise NotImplementedError("angle of complex numbers")
    real = x if x.dtype.is_floating_point else x.to(torch.get_default_dtype())
    half = torch.where(real < 0, math.pi, 0.0).to(real.dtype)
    return torch.where(real.isnan(), real, half)


@_composes("aten.mode.default")
def _mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element of each line, the smallest of several, and its last position."""
    import torch

    if not x.ndim:
        return x.clone(), x.new_zeros((), dtype=_int64())
    dim = dim % x.ndim
    count = x.shape[dim]
    values, order = torch.sort(x, stable=True, dim=dim)
    place = torch.arange(count, device=x.device).reshape([-1] + [1] * (x.ndim - dim - 1))
    changes = values.narrow(dim, 1, count - 1) != values.narrow(dim, 0, count - 1)
    starts = torch.where(changes, place[1:], 0)
    starts = torch.cat([torch.zeros_like(order.narrow(dim, 0, 1)), starts], dim)
    longest = (place - starts.cummax(dim).values).argmax(dim, keepdim=True)
    found = values.gather(dim, longest), order.gather(dim, longest)
    return found if keepdim else tuple(v.squeeze(dim) for v in found)


# ------------------------------------------------------------------------------------- functions
@_composes("aten.addbmm.default")
def _addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """The sum of the products of all pairs of matrices, as one product."""
    import torch

    rows, columns = a.movedim(0, 1).flatten(1), b.flatten(0, 1)
    return torch.addmm(x, rows, columns, beta=beta, alpha=alpha)


_SHIFT = 12  # from where the asymptotic series of polygamma is exact to 1e-15
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)


@_composes("aten.polygamma.default", "aten.special_polygamma.default")
def _polygamma(n: int, x: Any) -> Any:
    """The n-th derivative of digamma, in double precision.

    For x < 0 it is that of 1 - x, and the n-th derivative of pi cot(pi x).
    """
    import torch

    if n == 0:
        return x.digamma()
    dtype = x.dtype if x.dtype.is_floating_point else torch.get_default_dtype()
    x = x.double()
    negative = x < 0
    right = _polygamma_of_positive(n, torch.where(negative, 1 - x, x))
    angle = math.pi * (x - x.round())
    cotangent = angle.cos() / angle.sin()
    left = right * (-1) ** n - _derivative_of_cotangent(n, cotangent)
    pole = math.inf if n % 2 else -math.inf
    left = torch.where(x == x.round(), pole, left)
    if n == 1:
        left = torch.where(x.isinf(), math.nan, left)
    return torch.where(negative, left, right).to(dtype)


def _polygamma_of_positive(n: int, x: Any) -> Any:
    """(-1)^(n + 1) n! times the sum of (x + k)^-(n + 1): 12 terms, then Euler and Maclaurin's."""
    total = sum((x + k) ** -(n + 1) for k in range(_SHIFT)) * math.factorial(n)
    inverse = 1 / (x + _SHIFT)
    tail = math.factorial(n - 1) + inverse * (math.factorial(n) / 2)
    power = inverse * inverse
    for k, number in enumerate(_BERNOULLI, 1):
        tail = tail + power * (number * math.factorial(2 * k + n - 1) / math.factorial(2 * k))
        power = power * inverse * inverse
    return (total + tail * inverse**n) * (-1) ** (n + 1)


def _derivative_of_cotangent(n: int, cotangent: Any) -> Any:
    """The n-th derivative of pi cot(pi x), a polynomial in cot(pi x)."""
    coefficients = [0, 1]
    for _ in range(n):  # the derivative of c^k is -k (c^(k - 1) + c^(k + 1))
        slope = [k * a for k, a in enumerate(coefficients)][1:]
        coefficients = [0] * (len(slope) + 2)
        for k, a in enumerate(slope):
            coefficients[k] -= a
            coefficients[k + 2] -= a
    result: Any = 0.0
    for a in reversed(coefficients):
        result = result * cotangent + a
    return result * math.pi ** (n + 1)


# ------------------------------------------------------------------------------------- images
@_composes("aten.max_unpool2d.default", "aten.max_unpool3d.default")
def _max_unpool(
    x: Any,
    indices: Any,
    output_size: Sequence[Any],
    stride: Sequence[int] | None = None,
    padding: Sequence[int] | None = None,
) -> Any:
    """Elements at their positions in planes of zeros."""
    lead = list(x.shape[: x.ndim - len(output_size)])
    whole = x.new_zeros([*lead, math.prod(output_size)])
    flat = whole.scatter(-1, indices.reshape([*lead, -1]), x.reshape([*lead, -1]))
    return flat.reshape([*lead, *output_size])


# ---------------------------------------------------------------------------------------- counting
@_composes("aten.histc.default")
def _histogram(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Numbers of elements in intervals of equal length; the last one includes its upper end."""
    import torch

    x = x.reshape(-1)
    low: Any = torch.full((), min, dtype=x.dtype, device=x.device)
    high: Any = torch.full((), max, dtype=x.dtype, device=x.device)
    if min == max and x.shape[0] != 0:
        low, high = x.amin(), x.amax()
    same = low == high
    low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    inside = (x >= low) & (x <= high)
    scaled = torch.where(inside, (x - low) * bins / (high - low), 0)
    place = scaled.to(torch.int64).clamp(max=bins - 1)
    counts = torch.zeros(bins, dtype=torch.int64, device=x.device)
    return counts.scatter_add(0, place, inside.to(torch.int64)).to(x.dtype)


@_composes("aten.searchsorted.Scalar")
def _place_of_number(ordered: Any, value: Any, **named: Any) -> Any:
    import torch

    number = torch.full((), value, dtype=ordered.dtype, device=ordered.device)
    return torch.ops.aten.searchsorted.Tensor(ordered, number, **named)


# ------------------------------------------------------------------------ images with antialiasing
@_composes("aten._upsample_bilinear2d_aa.default")
def _smooth_bilinear(
    x: Any, size: Sequence[Any], corners: bool, rows: float | None = None, columns: Any = None
) -> Any:
    return _resampled(x, size, corners, (rows, columns), 1.0, _triangle)


@_composes("aten._upsample_bicubic2d_aa.default")
def _smooth_bicubic(
    x: Any, size: Sequence[Any], corners: bool, rows: float | None = None, columns: Any = None
) -> Any:
    return _resampled(x, size, corners, (rows, columns), 2.0, _cubic)


def _triangle(distance: Any) -> Any:
    return (1 - distance.abs()).clamp(min=0)


def _cubic(distance: Any) -> Any:
    """Keys' cubic with a = -1/2."""
    import torch

    x = distance.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _resampled(
    x: Any,
    size: Sequence[Any],
    corners: bool,
    scales: Sequence[float | None],
    reach: float,
    filter: Callable[[Any], Any],
) -> Any:
    """A product with a matrix of filter weights along each of the last two axes."""
    import torch

    wide = x if x.is_floating_point() and x.itemsize > 2 else x.float()
    rows, columns = (
        _weights(torch, x.shape[axis], size[axis], corners, scales[axis], reach, filter).to(wide)
        for axis in (-2, -1)
    )
    result = rows @ wide @ columns.transpose(0, 1)
    return result if x.is_floating_point() else result.round().clamp(0, 255).to(x.dtype)


def _weights(
    torch: Any,
    before: Any,
    after: Any,
    corners: bool,
    stated: float | None,
    reach: float,
    filter: Callable[[Any], Any],
) -> Any:
    """The weight of each of `before` elements in each of `after` ones."""
    # Tensors, so that no size decides which branch is taken.
    wide = {"dtype": torch.float64}
    if corners:
        below = torch.full((), after - 1, **wide)
        scale = torch.where(below > 0, torch.full((), before - 1, **wide) / below, 0.0)
    elif stated:
        scale = torch.full((), 1 / stated, **wide)
    else:
        scale = torch.full((), before, **wide) / torch.full((), after, **wide)
    stretch = scale.clamp(min=1)
    support = reach * stretch
    center = scale * (torch.arange(after, **wide) + 0.5)
    first = (center - support + 0.5).to(torch.int64).clamp(min=0).unsqueeze(1)
    last = (center + support + 0.5).to(torch.int64).clamp(max=before).unsqueeze(1)
    place = torch.arange(before)
    weights = filter((place - center.unsqueeze(1) + 0.5) / stretch)
    weights = torch.where((place >= first) & (place < last), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)
