"""Test support: random programs, arguments for them, and comparison by running."""

from blockwright.testing.arrays import make_arrays, random_sizes
from blockwright.testing.check import assert_same_meaning, difference
from blockwright.testing.generators import random_program

__all__ = ["assert_same_meaning", "difference", "make_arrays", "random_program", "random_sizes"]
