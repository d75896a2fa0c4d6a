"""The pipeline that `bw.compile` runs for a target."""

from __future__ import annotations

from blockwright.passes import pipelines
from blockwright.passes.pipeline import Pipeline
from blockwright.support import BuildError
from blockwright.support.registry import submodules
from blockwright.target import Target

_BY_KIND: dict[str, Pipeline] = {
    module.__name__.rpartition(".")[2]: module.PIPELINE
    for module in submodules(pipelines.__name__, pipelines.__path__)
}
_registered: dict[str, Pipeline] = {}


def register_pipeline(target: str, pipeline: Pipeline) -> None:
    """Make a pipeline the default of a target, or of all targets of a kind ("cpu", "cuda").

    It replaces the one registered before.
    """
    _registered[target] = pipeline


def default_pipeline(target: Target | str = "native") -> Pipeline:
    """The pipeline that `bw.compile` runs for a target.

    It is the one registered for the target's name, or else for its kind, or else the one that
    `passes/pipelines/` has for the kind.

    Raises: BuildError BW602 if there is none.
    """
    machine = Target(target)
    for known in (_registered, _BY_KIND):
        for name in (machine.name, machine.kind):
            if name in known:
                return known[name]
    raise BuildError(
        f"there is no pipeline for the target {machine.name}",
        code="BW602",
        help=f"choose a target of kind {' or '.join(_BY_KIND)}, or register a pipeline with "
        "blockwright.passes.register_pipeline",
    )
