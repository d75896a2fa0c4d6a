"""Integer sets and relations: the part of isl that the proofs use, with deterministic freeing.

isl is a C library. The package islpy contains it, compiled into one file that exports isl's
functions. They are called here without islpy's own classes, which leak memory for each operand that
isl consumes and thereby keep the context alive: a process that runs many proofs would grow without
bound. Here an object is freed with its last reference, and a context after its last object.

Names are those of isl's functions: `a.intersect(b)` of two sets is `isl_set_intersect`. No call
changes its operands.
"""

from blockwright.verify.isl.library import Context, Dim, Error
from blockwright.verify.isl.objects import (
    Map,
    Set,
    UnionAccessInfo,
    UnionMap,
    UnionSet,
)

__all__ = [
    "Context",
    "Dim",
    "Error",
    "Map",
    "Set",
    "UnionAccessInfo",
    "UnionMap",
    "UnionSet",
]
