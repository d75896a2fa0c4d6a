"""Graph passes, one file each, and the named pipeline."""

from blockwright.passes.context import Pass, PassContext
from blockwright.passes.pipeline import STAGES, run_pipeline

__all__ = ["STAGES", "Pass", "PassContext", "run_pipeline"]
