"""Composite scheduling: tiles by notation, axes by name, zooming, rules made of primitives."""

from blockwright.schedule.compose.axes import Axes
from blockwright.schedule.compose.methods import Compose
from blockwright.schedule.compose.rule import composite
from blockwright.schedule.compose.zoom import Zoom

__all__ = ["Axes", "Compose", "Zoom", "composite"]
