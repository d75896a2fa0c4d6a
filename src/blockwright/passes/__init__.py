"""Graph passes, one file each, and the pipelines that name them."""

from blockwright.passes.check_passes import CheckPasses
from blockwright.passes.compare_passes import ComparePasses
from blockwright.passes.context import (
    Pass,
    PassContext,
    PassRun,
    function_pass,
    graph_pass,
    program_pass,
)
from blockwright.passes.defaults import default_pipeline, register_pipeline
from blockwright.passes.instrument import Instrument
from blockwright.passes.pipeline import Pipeline

__all__ = [
    "CheckPasses",
    "ComparePasses",
    "Instrument",
    "Pass",
    "PassContext",
    "PassRun",
    "Pipeline",
    "default_pipeline",
    "function_pass",
    "graph_pass",
    "program_pass",
    "register_pipeline",
]
