"""Tensor intrinsics: what `tensorize` puts in the place of a computation it recognises."""

from blockwright.intrin.register_tile import outer_product_name
from blockwright.intrin.registry import TensorIntrin

__all__ = ["TensorIntrin", "outer_product_name"]
