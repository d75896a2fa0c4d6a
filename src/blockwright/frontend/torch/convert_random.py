"""Converters of random operators: numbers of distributions, made from random bits.

The numbers are those of the program's own generator (see `random_state`), not those of PyTorch.
Operators without a converter here are decomposed: exponential, cauchy, geometric and log_normal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from blockwright import ir
from blockwright.frontend.torch.calls import apply
from blockwright.frontend.torch.operands import (
    Registry,
    cast_to,
    dims_of,
    is_tensor,
    node_shape,
    result_type,
    size_of,
)
from blockwright.graph import shape_value
from blockwright.support import ImporterError

if TYPE_CHECKING:
    from blockwright.frontend.torch.importer import Importer

TABLE = Registry()
Shape = tuple[ir.Expr, ...]
_U32, _U64, _I64 = ir.dtype_of("uint32"), ir.dtype_of("uint64"), ir.dtype_of("int64")
_FLOAT32, _FLOAT64 = ir.dtype_of("float32"), ir.dtype_of("float64")
_DIGITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Float type → bits of a uniform number, so that it is exact and below 1."""


def _right(imp: Importer, name: str, x: Any, scalar: Any) -> Any:
    """A row with a number as its second operand."""
    return imp.builder.op(name, x, scalar=scalar, scalar_side="right")


def _require_own_generator(generator: Any) -> None:
    if generator is not None:
        raise ImporterError(
            "a random operator with a generator of PyTorch",
            code="BW507",
            help="leave it out: compiled models have a generator of their own, exe.seed(n)",
        )


# ----------------------------------------------------------------------------------- distributions
def _fractions(imp: Importer, bits: Any, digits: int, dtype: ir.DType) -> Any:
    """The highest `digits` bits as numbers in [0, 1), exact in `dtype`."""
    width = bits.tensor_info.dtype.bits
    kept = bits if digits == width else _right(imp, "right_shift", bits, width - digits)
    return _right(imp, "multiply", cast_to(imp, kept, dtype), 2.0**-digits)


def _uniform(imp: Importer, shape: Shape, dtype: ir.DType) -> Any:
    """Uniform numbers in [0, 1): multiples of the type's distance below 1."""
    digits = _DIGITS.get(dtype.name)
    if digits is None:
        raise ImporterError(f"uniform random numbers of {dtype}", code="BW507", help=_FLOATS)
    bits = imp.random.bits(shape, "uint64" if digits > 32 else "uint32")
    return _fractions(imp, bits, digits, dtype)


_FLOATS = "draw them in float32 and convert them"


def _normal(imp: Importer, shape: Shape, dtype: ir.DType) -> Any:
    """Standard normal numbers by the transform of Box and Muller: √(-2 ln u) cos 2πv.

    Up to 6.6 in float32 and 8.6 in float64; half types are computed in float32.
    """
    if dtype.name not in _DIGITS:
        raise ImporterError(f"normal random numbers of {dtype}", code="BW507", help=_FLOATS)
    bits = imp.random.bits(shape, "uint64")
    if dtype is _FLOAT64:
        inner, digits, first, second = dtype, 53, bits, imp.random.bits(shape, "uint64")
    else:
        inner, digits = _FLOAT32, 32
        first = cast_to(imp, bits, _U32)
        second = cast_to(imp, _right(imp, "right_shift", bits, 32), _U32)
    u = _right(imp, "add", _fractions(imp, first, digits, inner), 2.0 ** (-digits - 1))
    v = _fractions(imp, second, _DIGITS[inner.name], inner)
    radius = imp.builder.op("sqrt", _right(imp, "multiply", imp.builder.op("log", u), -2.0))
    angle = imp.builder.op("cos", _right(imp, "multiply", v, 2 * math.pi))
    return cast_to(imp, imp.builder.op("multiply", radius, angle), dtype)


def _true_with(imp: Importer, shape: Shape, probability: Any) -> Any:
    """Bools that are true with a probability: a number, or a tensor of `shape`.

    The probability is rounded to a multiple of 2^-32 if it is a number, else up to one.
    """
    if is_tensor(probability):
        u = _fractions(imp, imp.random.bits(shape, "uint32"), 32, _FLOAT64)
        return imp.builder.op("less", u, cast_to(imp, probability, _FLOAT64))
    if not isinstance(probability, (int, float)) or not 0 <= probability <= 1:
        raise ImporterError(
            f"the probability {probability!r} is not a number from 0 to 1", code="BW514"
        )
    limit = round(probability * 2**32)
    if limit == 2**32:
        return imp.builder.op("full", shape_value(shape), fill_value=True, dtype="bool")
    return _right(imp, "less", imp.random.bits(shape, "uint32"), limit)


def _whole(imp: Importer, shape: Shape, low: Any, high: Any, dtype: ir.DType) -> Any:
    """Integers from `low` to `high`, exclusive: 64 random bits modulo their number."""
    bits = imp.random.bits(shape, "uint64")
    if is_tensor(high):
        count = cast_to(imp, apply(imp, "subtract", high, low), _U64)
        rest = imp.builder.op("fmod", bits, count)
    else:
        if not (isinstance(low, int) and isinstance(high, int)):
            low, high = size_of(imp, low), size_of(imp, high)
        elif low >= high:
            raise ImporterError(f"there are no integers from {low} to {high}", code="BW514")
        rest = _right(imp, "fmod", bits, high - low)
    return cast_to(imp, _right(imp, "add", cast_to(imp, rest, _I64), low), dtype)


# --------------------------------------------------------------------------------------- operators
@TABLE.overload(
    "aten.rand.default", "aten.rand.generator", "aten.rand_like.default",
    "aten.rand_like.generator",
)  # fmt: skip
def _rand(imp: Importer, node: Any, *sizes: Any, generator: Any = None, **ignored: Any) -> Any:
    _require_own_generator(generator)
    return _uniform(imp, node_shape(imp, node), result_type(node))


@TABLE.overload(
    "aten.randn.default", "aten.randn.generator", "aten.randn_like.default",
    "aten.randn_like.generator",
)  # fmt: skip
def _randn(imp: Importer, node: Any, *sizes: Any, generator: Any = None, **ignored: Any) -> Any:
    _require_own_generator(generator)
    return _normal(imp, node_shape(imp, node), result_type(node))


@TABLE.overload("aten.uniform.default")
def _uniform_between(
    imp: Importer, node: Any, x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None
) -> Any:
    _require_own_generator(generator)
    u = _uniform(imp, node_shape(imp, node), result_type(node))
    return apply(imp, "add", apply(imp, "multiply", u, high - low), low)


@TABLE.overload(
    "aten.normal.default", "aten.normal_functional.default",
)  # fmt: skip
def _normal_into(
    imp: Importer, node: Any, x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None
) -> Any:
    return _normal_around(imp, node, mean, std, generator=generator)


@TABLE.overload(
    "aten.normal.float_float", "aten.normal.Tensor_float", "aten.normal.float_Tensor",
    "aten.normal.Tensor_Tensor",
)  # fmt: skip
def _normal_around(
    imp: Importer,
    node: Any,
    mean: Any,
    std: Any = 1.0,
    *sizes: Any,
    generator: Any = None,
    **ignored: Any,
) -> Any:
    _require_own_generator(generator)
    z = _normal(imp, node_shape(imp, node), result_type(node))
    return cast_to(imp, apply(imp, "add", apply(imp, "multiply", z, std), mean), result_type(node))


@TABLE.overload("aten.bernoulli.default")
def _bernoulli(imp: Importer, node: Any, x: Any, *, generator: Any = None) -> Any:
    return _bernoulli_with(imp, node, x, x, generator=generator)


@TABLE.overload("aten.bernoulli.p", "aten.bernoulli.float", "aten.bernoulli.Tensor")
def _bernoulli_with(
    imp: Importer, node: Any, x: Any, p: Any = 0.5, *, generator: Any = None
) -> Any:
    _require_own_generator(generator)
    shape = node_shape(imp, node)
    if is_tensor(p) and len(dims_of(p)) < len(shape):
        p = imp.builder.op("broadcast_to", p, shape_value(shape))
    return cast_to(imp, _true_with(imp, shape, p), result_type(node))


@TABLE.overload(
    "aten.randint.default", "aten.randint.generator", "aten.randint.low",
    "aten.randint.low_generator",
)  # fmt: skip
def _randint(imp: Importer, node: Any, *bounds: Any, generator: Any = None, **ignored: Any) -> Any:
    _require_own_generator(generator)
    low, high = bounds[:2] if "low" in str(node.target) else (0, bounds[0])
    return _whole(imp, node_shape(imp, node), low, high, result_type(node))


@TABLE.overload(
    "aten.randint_like.default", "aten.randint_like.Tensor", "aten.randint_like.low_dtype",
    "aten.randint_like.generator", "aten.randint_like.Tensor_generator",
    "aten.randint_like.low_generator_dtype",
)  # fmt: skip
def _randint_like(imp: Importer, node: Any, x: Any, *bounds: Any, **given: Any) -> Any:
    return _randint(imp, node, *bounds, **given)


@TABLE.overload("aten.randperm.default", "aten.randperm.generator")
def _randperm(imp: Importer, node: Any, count: Any, *, generator: Any = None, **given: Any) -> Any:
    """The order of random keys; of equal keys, which are unlikely, the first stays first."""
    _require_own_generator(generator)
    keys = imp.random.bits(node_shape(imp, node), "uint64")
    return cast_to(imp, imp.builder.op("argsort", keys, axis=0), result_type(node))


# ----------------------------------------------------------------------------------------- dropout
@TABLE.overload("aten.native_dropout.default")
def _native_dropout(imp: Importer, node: Any, x: Any, p: float, train: bool | None = None) -> Any:
    shape = dims_of(x)
    if train is False:
        kept = imp.builder.op("full", shape_value(shape), fill_value=True, dtype="bool")
        return [x, kept]
    kept = _true_with(imp, shape, 1 - p)
    return [_kept(imp, x, kept, p), kept]


@TABLE.overload("aten.dropout.default")
def _dropout(imp: Importer, node: Any, x: Any, p: float, train: bool = False) -> Any:
    if not train or not p:
        return x
    return _kept(imp, x, _true_with(imp, dims_of(x), 1 - p), p)


@TABLE.overload("aten.feature_dropout.default")
def _feature_dropout(imp: Importer, node: Any, x: Any, p: float, train: bool = False) -> Any:
    """Dropout of whole channels."""
    if not train or not p:
        return x
    return _kept(imp, x, _true_with(imp, _channels(x), 1 - p), p)


@TABLE.overload("aten.alpha_dropout.default")
def _alpha_dropout(imp: Importer, node: Any, x: Any, p: float, train: bool = False) -> Any:
    return _self_normalizing(imp, x, p, dims_of(x)) if train and p else x


@TABLE.overload("aten.feature_alpha_dropout.default")
def _feature_alpha_dropout(imp: Importer, node: Any, x: Any, p: float, train: bool = False) -> Any:
    return _self_normalizing(imp, x, p, _channels(x)) if train and p else x


def _channels(x: Any) -> Shape:
    """The shape of a mask for whole channels."""
    batch, channels, *space = dims_of(x)
    return batch, channels, *[ir.const(1, "int64")] * len(space)


def _kept(imp: Importer, x: Any, kept: Any, p: float) -> Any:
    """The kept elements, scaled so that the expectation stays; the others are multiplied by 0."""
    factors = cast_to(imp, kept, x.tensor_info.dtype)
    product = imp.builder.op("multiply", x, factors)
    return apply(imp, "multiply", product, 0.0 if p == 1 else 1 / (1 - p))


def _self_normalizing(imp: Importer, x: Any, p: float, shape: Shape) -> Any:
    """Dropout in favour of the least value of SELU that keeps mean and variance."""
    least = 1.7580993408473766  # the limit of -SELU(x) for small x
    scale = 0.0 if p == 1 else 1 / math.sqrt((least * least * p + 1) * (1 - p))
    kept = cast_to(imp, _true_with(imp, shape, 1 - p), x.tensor_info.dtype)
    lost = apply(imp, "multiply", apply(imp, "subtract", kept, 1.0), least * scale)
    shift = apply(imp, "add", lost, least * scale * p)
    return imp.builder.op(
        "add", imp.builder.op("multiply", x, apply(imp, "multiply", kept, scale)), shift
    )


@TABLE.overload("aten.multinomial.default")
def _multinomial(
    imp: Importer,
    node: Any,
    weights: Any,
    count: int,
    replacement: bool = False,
    *,
    generator: Any = None,
) -> Any:
    """Positions with probabilities in the ratio of the weights: a race of exponential numbers.

    ln(u) / weight is largest at a position with the probability weight / sum. The positions of the
    `count` largest numbers are a sample without replacement.
    """
    _require_own_generator(generator)
    op, shape = imp.builder.op, dims_of(weights)
    dtype = _FLOAT64 if weights.tensor_info.dtype is _FLOAT64 else _FLOAT32
    weights = cast_to(imp, weights, dtype)
    if replacement:
        *batch, _ = shape
        weights = op("expand_dims", weights, axis=len(batch))
        shape = (*batch, ir.const(count, "int64"), shape[-1])
    digits = 53 if dtype is _FLOAT64 else 32
    bits = imp.random.bits(shape, "uint64" if digits > 32 else "uint32")
    u = _right(imp, "add", _fractions(imp, bits, digits, dtype), 2.0 ** (-digits - 1))
    below = _right(imp, "minimum", op("log", u), -(2.0**-25))  # u is rounded, and may be 1
    race = op("divide", below, weights)
    if replacement:
        return op("argmax", race, axis=-1)
    order = op("argsort", race, axis=-1, descending=True)
    return op("slice", order, axis=-1, end=count)
