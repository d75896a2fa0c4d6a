"""Integer sets and relations: what the proofs use of isl, freed when it is no more used.

isl is a library in C. The package islpy brings it along, compiled into one file that exports its
functions. They are called here without islpy's own classes: of each operand that isl takes, those
leave some memory behind, and with it they keep the context alive, so that a process that proves
much would grow for ever. Here objects are freed with their last reference, and a context after the
last of its objects.

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
