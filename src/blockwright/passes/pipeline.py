"""A pipeline of graph passes: named stages of named passes, as an immutable value.

A pipeline is printed (`print(pipeline)`), edited (each edit returns a new pipeline) and called:

    pipeline = bw.default_pipeline("native").after("legalize", my_pass).until("fuse_ops")
    module = pipeline(bw.import_model(model, inputs))

`passes/pipelines/` has the pipelines of the compiler, one file per kind of target.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from blockwright import ir
from blockwright.passes.context import NamedPass, Pass, PassContext
from blockwright.support import OptionError
from blockwright.support.kinds import require_kind
from blockwright.support.suggest import choices
from blockwright.target import Target

PassOrPair = Pass | tuple[str, Pass]
"""A pass, named after its function, or a pair of name and pass."""


class Stage(NamedTuple):
    """A stage of a pipeline and its passes in order."""

    name: str
    passes: tuple[NamedPass, ...]


class _Place(NamedTuple):
    """The passes `begin` to `end` of the stage of that index."""

    stage: int
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Pipeline:
    """Named stages of named passes.

    Edits return a new pipeline. They take the name of a pass, or of a stage, which stands for all
    its passes: `before` a stage inserts at its start, `after` a stage at its end. A new pass is
    named after its function; `("name", function)` gives it another name.

    Attributes:
        stages: pairs of name and passes, which are pairs of name and function.
    """

    stages: tuple[Stage, ...]

    def __init__(self, stages: Iterable[tuple[str, Iterable[PassOrPair]]]) -> None:
        """Make a pipeline of stages, pairs of a name and a list of passes.

        Raises: OptionError BW931 for stages of another form, and for a name that is used twice.
        """
        object.__setattr__(self, "stages", _stages(stages))
        _require_distinct([*(stage.name for stage in self.stages), *self.names])

    @property
    def passes(self) -> tuple[NamedPass, ...]:
        """All passes in order."""
        return tuple(one for stage in self.stages for one in stage.passes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all passes in order."""
        return tuple(one.name for one in self.passes)

    def before(self, place: str, *passes: PassOrPair) -> Pipeline:
        """Insert passes in front of a pass, or at the start of a stage."""
        at = self._place(place)
        return self._with(at._replace(end=at.begin), passes)

    def after(self, place: str, *passes: PassOrPair) -> Pipeline:
        """Insert passes behind a pass, or at the end of a stage."""
        at = self._place(place)
        return self._with(at._replace(begin=at.end), passes)

    def replace(self, place: str, *passes: PassOrPair) -> Pipeline:
        """Put other passes in the place of a pass, or of all passes of a stage."""
        return self._with(self._place(place), passes)

    def without(self, *places: str) -> Pipeline:
        """Remove passes, or all passes of stages; the stages stay."""
        result = self
        for place in places:
            result = result._with(result._place(place), ())
        return result

    def only(self, *places: str) -> Pipeline:
        """Keep only these passes, in the order of the pipeline."""
        kept: set[str] = set()
        for place in places:
            at = self._place(place)
            kept |= {one.name for one in self.stages[at.stage].passes[at.begin : at.end]}
        return self.without(*(name for name in self.names if name not in kept))

    def until(self, place: str) -> Pipeline:
        """Stop after a pass or a stage."""
        at = self._place(place)
        name, passes = self.stages[at.stage]
        return Pipeline((*self.stages[: at.stage], (name, passes[: at.end])))

    def __call__(
        self, module: ir.IRModule, context: PassContext | Target | str = "native"
    ) -> ir.IRModule:
        """Run all passes on a module and return the result.

        Arguments:
            module: a module as `bw.import_model` makes it; without the first passes, what they
                would return.
            context: the target. A `PassContext` also has options and instruments, and tells
                afterwards what was decided and how long each pass took.

        Raises: BuildError BW646 if a pass returns no module; the errors of the passes.
        """
        require_kind(
            module,
            ir.IRModule,
            "a pipeline runs on an IR module",
            OptionError,
            "BW902",
            "bw.import_model converts a model to one",
        )
        ctx = context if isinstance(context, PassContext) else PassContext(Target(context))
        for done, (stage, passes) in enumerate(self.stages):
            ctx.progress(stage, done, len(self.stages))
            for one in passes:
                module = ctx.run(one, module, stage)
        return module

    def __str__(self) -> str:
        """Stages and passes, each pass with the first line of its docstring."""
        width = max(map(len, self.names), default=0)
        lines: list[str] = []
        for name, passes in self.stages:
            lines.append(name)
            lines += [f"    {n:{width}}  {summary(run)}".rstrip() for n, run in passes]
            lines += [] if passes else ["    nothing to do"]
        return "\n".join(lines)

    __repr__ = __str__

    def _place(self, name: str) -> _Place:
        for position, stage in enumerate(self.stages):
            if stage.name == name:
                return _Place(position, 0, len(stage.passes))
            for index, one in enumerate(stage.passes):
                if one.name == name:
                    return _Place(position, index, index + 1)
        raise OptionError(
            f"the pipeline has no pass or stage {name!r}",
            code="BW930",
            help=choices(name, [*self.names, *(stage.name for stage in self.stages)]),
        )

    def _with(self, at: _Place, passes: Sequence[PassOrPair]) -> Pipeline:
        """The pipeline with other passes at a place."""
        name, old = self.stages[at.stage]
        stage = (name, (*old[: at.begin], *passes, *old[at.end :]))
        return Pipeline((*self.stages[: at.stage], stage, *self.stages[at.stage + 1 :]))


def summary(run: Pass) -> str:
    """The first line of the docstring of a pass."""
    return (inspect.getdoc(run) or "").partition("\n")[0]


def _stages(given: Any) -> tuple[Stage, ...]:
    """Check and convert the stages of a pipeline."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise _malformed(f"stages are pairs (name, passes), not {type(given).__name__}")
    result: list[Stage] = []
    for stage in cast("Iterable[Any]", given):
        if not _is_pair(stage) or not isinstance(stage[1], (list, tuple)):
            raise _malformed(f"a stage is a pair (name, passes), not {stage!r}")
        result.append(Stage(stage[0], tuple(map(_named, cast("Sequence[Any]", stage[1])))))
    return tuple(result)


def _named(given: Any) -> NamedPass:
    """A pass with its name, from a function or a pair."""
    name, run = given if _is_pair(given) else (getattr(given, "__name__", None), given)
    if not isinstance(name, str) or not callable(run):
        raise _malformed(f"{given!r} is not a pass")
    return NamedPass(name, cast("Pass", run))


def _is_pair(given: Any) -> bool:
    pair = cast("Sequence[Any]", given) if isinstance(given, (list, tuple)) else ()
    return len(pair) == 2 and isinstance(pair[0], str)


def _malformed(message: str) -> OptionError:
    return OptionError(
        message,
        code="BW931",
        help="a pass is a function from module and context to a module, or a pair (name, function)",
    )


def _require_distinct(names: Sequence[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise OptionError(
                f"the pipeline has two passes or stages with the name {name!r}",
                code="BW931",
                help='pass ("another name", function), or replace the pass with that name',
            )
