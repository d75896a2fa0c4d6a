"""Composite scheduling: tiling notation, axes by name, zoom, composite rules."""

from blockwright.schedule.compose.axes import Axes
from blockwright.schedule.compose.methods import Compose
from blockwright.schedule.compose.rule import composite
from blockwright.schedule.compose.zoom import Zoom

__all__ = ["Axes", "Compose", "Zoom", "composite"]
