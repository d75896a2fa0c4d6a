"""All architectures of the survey, by name."""

from __future__ import annotations

from fuzzing.models import signals, text, vision
from fuzzing.models.architecture import Architecture

CATALOG: dict[str, Architecture] = {
    each.name: each for each in (*text.ARCHITECTURES, *vision.ARCHITECTURES, *signals.ARCHITECTURES)
}
