"""Tensor intrinsics: the pattern and implementation pairs that `tensorize` applies."""

from blockwright.intrin.dot_lanes import dot_lanes_name
from blockwright.intrin.dot_tile import dot_tile_name
from blockwright.intrin.matrix_tile import matrix_tile
from blockwright.intrin.register_tile import outer_product_name
from blockwright.intrin.registry import IntrinVerdict, TensorIntrin
from blockwright.intrin.tile_registers import tile_register

__all__ = [
    "IntrinVerdict",
    "TensorIntrin",
    "dot_lanes_name",
    "dot_tile_name",
    "matrix_tile",
    "outer_product_name",
    "tile_register",
]
