"""The campaign over random ONNX graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fuzzing.campaign import SECONDS, Campaign, SeedResult
from fuzzing.eager.outcome import Outcome
from fuzzing.onnx_graphs.draw import draw
from fuzzing.onnx_graphs.evaluate import Invalid, expected
from fuzzing.onnx_graphs.judge import judge, reduced
from fuzzing.onnx_graphs.program import OnnxProgram
from fuzzing.schedules.isolate import Death, isolated
from fuzzing.schedules.native import load_compiler


def play(seed: int) -> SeedResult:
    """Draw and judge a graph; reduce it if it is a finding. Every third graph is interpreted."""
    program = draw(seed)
    interpret = seed % 3 == 0
    verdict = judge(program, interpret=interpret)
    if not verdict.is_finding:
        return SeedResult(seed, verdict)

    def fails(smaller: OnnxProgram) -> bool:
        return judge(smaller, interpret=interpret).symptom == verdict.symptom

    small = reduced(program, fails)
    last = judge(small, interpret=interpret)
    return SeedResult(seed, last, as_script(small, last, seed))


def _died(seed: int, why: str) -> SeedResult:
    """The finding of a seed that ends its process, with the smallest graph that does."""

    def dies(program: OnnxProgram) -> bool:
        done = isolated(lambda: judge(program, interpret=False), SECONDS / 10)
        return isinstance(done, Death)

    if isinstance(isolated(lambda: bool(draw(seed).nodes), SECONDS / 10), Death):
        return SeedResult(seed, Outcome("eager", why, "ONNX Runtime ends the process"))
    verdict = Outcome("internal", why, "the process died")
    return SeedResult(seed, verdict, as_script(reduced(draw(seed), dies), verdict, seed))


def as_script(program: OnnxProgram, verdict: Outcome, seed: int) -> str:
    """A script that fails as long as the fault exists."""
    from onnx import printer

    calls: list[str] = []
    for call in program.calls:
        given = "".join(f"        {_text(x)},\n" for x in call.values())
        try:
            wanted = expected(program, call).results
        except Invalid:
            continue
        results = "".join(f"        {_text(x)},\n" for x in wanted)
        calls.append(f"    ((\n{given}    ), (\n{results}    )),\n")
    model = program.model()
    return _TEXT.format(
        symptom=verdict.symptom,
        words=verdict.words.replace('"""', "'''"),
        seed=seed,
        shown="\n".join(f"# {line}" for line in printer.to_text(model).split("\n")),
        model=model.SerializeToString().hex(),
        calls="".join(calls),
    )


def _text(array: np.ndarray) -> str:
    values = ", ".join(repr(x) for x in array.ravel().tolist())
    return f'np.array([{values}], "{array.dtype}").reshape({array.shape})'


_TEXT = """# {symptom}: {words}
# Found with seed {seed} by fuzzing.onnx_graphs.
{shown}
import numpy as np

import blockwright as bw

MODEL = bytes.fromhex(
    "{model}"
)
CALLS = [
{calls}]

module = bw.import_model(MODEL, fallback="error")
executable = bw.compile(module)
for arguments, expected in CALLS:
    for found in (executable(*arguments), bw.interpret(module, *arguments)):
        for x, y in zip(found if isinstance(found, (tuple, list)) else (found,), expected):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)
"""


CAMPAIGN = Campaign("graphs", Path("build/onnx_graphs"), play, _died, load_compiler)
