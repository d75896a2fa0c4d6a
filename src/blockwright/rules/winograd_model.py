"""Analytic model of Winograd convolutions: what a traversal costs, and which one to take."""

from __future__ import annotations

import math
import os

import msgspec

from blockwright.rules.tiles import choose_register_tile
from blockwright.target import Target


class Size(msgspec.Struct, frozen=True):
    """Extents of the product M[point, tile, filter] = V[point, tile, channel] · U[…]; None: unknown.
    """

    points: int
    tiles: int | None
    channels: int | None
    filters: int | None
    bits: int = 32


def choose_group(target: Target, size: Size) -> int | None:
    if "WP" in os.environ:
        P=int(os.environ["WP"])
        return P or None
    return None
