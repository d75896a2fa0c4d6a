"""Compositions of constants (windows, frequencies), of rounding as if quantized, of membership."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from blockwright.frontend.torch.compositions import Table, composes

COMPOSITIONS: Table = {}
"""Overload → composition."""
_composes = functools.partial(composes, COMPOSITIONS)


@_composes("aten.fft_fftfreq.default")
def _frequencies(n: int, d: float = 1.0, **named: Any) -> Any:
    import torch

    place = torch.arange(n, dtype=torch.float64, device=named.get("device"))
    return _made(torch.where(place * 2 < n, place, place - n) / (n * d), named)


@_composes("aten.fft_rfftfreq.default")
def _frequencies_of_half(n: int, d: float = 1.0, **named: Any) -> Any:
    import torch

    place = torch.arange(n // 2 + 1, dtype=torch.float64, device=named.get("device"))
    return _made(place / (n * d), named)


@_composes(*(f"aten.hamming_window.periodic{kind}" for kind in ("", "_alpha", "_alpha_beta")))
@_composes("aten.hamming_window.default")
def _hamming(
    n: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, **named: Any
) -> Any:
    return _window(lambda x: alpha - beta * (2 * math.pi * x).cos(), n, periodic, named)


@_composes("aten.blackman_window.default", "aten.blackman_window.periodic")
def _blackman(n: int, periodic: bool = True, **named: Any) -> Any:
    def height(x: Any) -> Any:
        return 0.42 - 0.5 * (2 * math.pi * x).cos() + 0.08 * (4 * math.pi * x).cos()

    return _window(height, n, periodic, named)


@_composes("aten.bartlett_window.default", "aten.bartlett_window.periodic")
def _bartlett(n: int, periodic: bool = True, **named: Any) -> Any:
    return _window(lambda x: 1 - (2 * x - 1).abs(), n, periodic, named)


@_composes(*(f"aten.kaiser_window.{kind}" for kind in ("default", "periodic", "beta")))
def _kaiser(n: int, periodic: bool = True, beta: float = 12.0, **named: Any) -> Any:
    import torch

    def height(x: Any) -> Any:
        inside = (1 - (2 * x - 1) ** 2).clamp(min=0).sqrt()
        return torch.i0(beta * inside) / torch.i0(torch.full_like(inside, beta))

    return _window(height, n, periodic, named)


def _window(height: Callable[[Any], Any], n: int, periodic: bool, named: dict[str, Any]) -> Any:
    """A window of n elements: `height` at n points of [0, 1], without 1 if it is periodic.

    A window of one element is 1.
    """
    import torch

    place = torch.arange(n, dtype=torch.float64, device=named.get("device"))
    if n == 1:
        return _made(place + 1, named)
    return _made(height(place / (n if periodic else n - 1)), named)


def _made(value: Any, named: dict[str, Any]) -> Any:
    """A new tensor of the stated type."""
    import torch

    return value.to(named.get("dtype") or torch.get_default_dtype())


# ------------------------------------------------------------------------------------- quantization
@_composes("aten.fake_quantize_per_tensor_affine_cachemask.default")
def _fake_quantize(x: Any, scale: float, zero: int, low: int, high: int) -> Any:
    import torch

    step = torch.full((), scale, dtype=torch.float32, device=x.device)
    return _quantized_values(x, step, torch.full_like(step, zero, dtype=torch.int64), low, high)


@_composes("aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def _fake_quantize_by_tensors(
    x: Any, scale: Any, zero: Any, enabled: Any, low: int, high: int
) -> Any:
    import torch

    result, inside = _quantized_values(
        x, scale.reshape(()), zero.reshape(()).to(torch.int64), low, high
    )
    on = enabled.reshape(()) != 0
    return torch.where(on, result, x), inside | ~on


@_composes("aten.fake_quantize_per_channel_affine_cachemask.default")
def _fake_quantize_channels(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    shape = [-1] + [1] * (x.ndim - axis % x.ndim - 1)
    return _quantized_values(x, scale.reshape(shape), zero.reshape(shape), low, high)


def _quantized_values(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """Quantize and dequantize; the second result is whether an element was not clamped.

    As in PyTorch's kernels, elements are multiplied by the reciprocal of the scale, and a zero
    point that is not an integer is added before rounding.
    """
    import torch

    scaled = x.to(torch.promote_types(x.dtype, torch.float32)) * (1 / scale)
    if zero.is_floating_point():
        place = (scaled + zero).round()
    else:
        place = scaled.round() + zero
    place = torch.where(place.isnan(), -math.inf, place)
    result = (place.clamp(low, high) - zero) * scale
    return result.to(x.dtype), (place >= low) & (place <= high)


_FEW = 64  # elements that are compared one by one rather than searched for


@_composes("aten.isin.Tensor_Tensor")
def _isin(x: Any, among: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """PyTorch chooses between the same two ways by a power of the sizes."""
    import torch

    dtype = torch.result_type(x, among)
    x, among = x.to(dtype), among.to(dtype).reshape(-1)
    count = among.shape[0]
    if isinstance(count, int) and count <= _FEW:
        found = (x.unsqueeze(-1) == among).any(-1)
    else:
        # One more element keeps the search inside; a repeated one changes nothing.
        ordered = torch.cat([among, among[:1]])
        if dtype.is_floating_point:  # searching needs an order, which NaN is not part of
            ordered = torch.where(ordered.isnan(), math.inf, ordered)
        ordered = ordered.sort().values
        place = torch.searchsorted(ordered, x.contiguous()).clamp(max=ordered.shape[0] - 1)
        found = ordered[place] == x
        if dtype.is_floating_point:
            found = torch.where(x == math.inf, (among == math.inf).any(), found)
    return ~found if invert else found


@_composes("aten.isin.Tensor_Scalar")
def _isin_number(x: Any, among: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    return x != among if invert else x == among


@_composes("aten.isin.Scalar_Tensor")
def _number_is_in(x: Any, among: Any, *, assume_unique: bool = False, invert: bool = False) -> Any:
    found = (among == x).any()
    return ~found if invert else found
