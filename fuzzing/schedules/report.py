"""Print a failure as a script: program, steps, and the failing check."""

from __future__ import annotations

from blockwright.ir.printer import script
from blockwright.schedule import Trace
from fuzzing.schedules.case import Case

_HEAD = '''"""{symptom}

Found with seed {seed} by fuzzing.schedules. Raises, or crashes, while the fault is there.
"""

import blockwright as bw
{imports}
program = bw.from_source("""{program}""")
sch = bw.Schedule(program, verify="full")
'''
_CHECKS = {
    "step": ("", "# the last step is the one that fails"),
    "meaning": (
        "from fuzzing.schedules.case import references\n"
        "from blockwright.testing.moves.checks import check_meaning\n",
        "for reference in references(program, {seed}):\n"
        "    check_meaning(reference, sch.func, exact={exact})",
    ),
    "native": (
        "from blockwright.testing.check import Reference\n"
        "from fuzzing.schedules.native import check_native\n",
        "check_native(Reference(program, seed={seed}), sch.func)",
    ),
    "lowering": (
        "from fuzzing.schedules.lowering import check_lowering\n",
        "check_lowering(program, sch.func, {seed})",
    ),
    "handles": (
        "from blockwright.testing.moves.checks import check_handles\n",
        "check_handles(sch, [handle for step in sch.trace for handle in step.outputs])",
    ),
    "text": (
        "from blockwright.testing.moves.checks import check_text\n",
        "check_text(sch.func)",
    ),
}
_REPLAY = (
    "from blockwright.testing.moves.checks import check_replay\n",
    'check_replay(program, sch.trace, sch.func, "{form}")',
)


def as_script(case: Case, symptom: str, seed: int) -> str:
    """A Python script that fails as the case does, with public names and test helpers."""
    imports, check = _CHECKS.get(case.phase, _REPLAY)
    steps = Trace(case.steps).as_python()
    if "T." in steps:
        imports = f"from blockwright.script import tir as T\n{imports}"
    if "tensorize(" in steps:
        imports = f"import blockwright.testing.moves.tensor  # the intrinsics\n{imports}"
    text = script(case.program).strip().replace("\\", "\\\\")
    head = _HEAD.format(symptom=symptom, seed=seed, imports=imports, program=f"\n{text}\n")
    form = case.phase.removeprefix("replay as ")
    return f"{head}{steps}\n\n{check.format(seed=case.seed, exact=case.exact, form=form)}\n"


def by_seed(symptom: str, words: str, seed: int, settings: str) -> str:
    """A script that plays a seed again, for failures that the trace alone does not reproduce."""
    quoted = "\n".join(f"# {line}" for line in words.splitlines()[:40])
    return f'''"""{symptom}

Found with seed {seed} by fuzzing.schedules; the steps alone do not repeat it.
"""

from fuzzing.schedules.play import Played, Settings, play

{quoted}
played = Played()
play({seed}, {settings}, played)
assert not played.failures, played.failures[0].words
'''
