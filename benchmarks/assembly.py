"""Record the machine code of every benchmark case, and list differences from an earlier record.

``python -m benchmarks.assembly build/asm-before`` compiles the cases of `operators`, `models` and
`symbolic` and writes the strategy, schedule trace and assembly of each kernel. After a change,
``python -m benchmarks.assembly build/asm-after --against build/asm-before`` prints the kernels that
changed. Code for a fixed target with default cache sizes does not depend on the machine that
compiles it, so records of two machines can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import symbolic
from benchmarks.cases import find, table

if TYPE_CHECKING:
    from collections.abc import Sequence

TARGETS = ("x86-64-v3", "x86-64-v4")
FAMILIES = ("operators", "models", "symbolic")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a record; with ``--against``, return 1 if a kernel's code differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.assembly", description=__doc__)
    parser.add_argument("record", type=Path, help="folder to write")
    parser.add_argument("--against", type=Path, help="folder of an earlier record")
    parser.add_argument("--only", action="append", default=[], help="cases whose names contain it")
    parser.add_argument("--target", action="append", choices=TARGETS, help="both by default")
    options = parser.parse_args(arguments)
    same = True
    for target in options.target or TARGETS:
        for family in FAMILIES:
            for name in _names(family, options.only):
                path = options.record / target / family / f"{_file_name(name)}.json"
                if not path.exists():
                    _in_process_of_its_own(family, name, target, path)
                if options.against is not None:
                    earlier = options.against / target / family / path.name
                    same &= _compare(path, earlier, f"{target} {family} {name}")
    return 0 if same else 1


def _names(family: str, only: Sequence[str]) -> list[str]:
    cases = symbolic.MODELS if family == "symbolic" else table(family)
    low = [part.lower() for part in only]
    return [c.name for c in cases if not low or any(part in c.name.lower() for part in low)]


def _in_process_of_its_own(family: str, name: str, target: str, path: Path) -> None:
    """Compile with an empty cache, in a new process that frees the model's memory at its end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    program = "import sys; from benchmarks.assembly import record; record(*sys.argv[1:])"
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [sys.executable, "-c", program, family, name, target, str(path)],
            check=True,
            env={**os.environ, "BLOCKWRIGHT_CACHE_DIR": cache},
        )


def record(family: str, name: str, target: str, path: str) -> None:
    """Compile one case and write ``{kernel: {strategy, trace, assembly}}`` to ``path``."""
    exe = _compiled(family, name, target)
    scheduled = exe.stages["schedule_programs"].functions
    kernels: dict[str, dict[str, str]] = {}
    for unit in exe.library.compiled.units:
        func: Any = scheduled.get(unit.name)
        trace = exe.context.traces.get(unit.name)
        kernels[unit.name] = {
            "strategy": "" if func is None else str(func.attrs.get("schedule_strategy")),
            "trace": "" if trace is None else trace.as_python(),
            "assembly": exe.library.source("asm", unit.name, complete=True),
        }
    part = Path(path).with_suffix(".part")
    part.write_text(json.dumps(kernels, indent=0), encoding="utf-8")
    part.replace(path)


def _compiled(family: str, name: str, target: str) -> Any:
    import torch

    import blockwright as bw
    from benchmarks.modules import build

    machine = bw.Target(target, num_threads=2)
    if family == "symbolic":
        model = next(model for model in symbolic.MODELS if model.name == name)
        sizes = {axis: min(low + 3, high) for axis, (low, high) in model.ranges.items()}
        return symbolic.compiled(model.case(sizes), model, machine)
    case = find(family, name)
    examples = [torch.from_numpy(array) for array in case.arrays()]
    return bw.compile(build(case), examples, target=machine, options={"fallback": "error"})


def _compare(after: Path, before: Path, title: str) -> bool:
    """Print the kernels of a case whose code differs; return whether there are none."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    missing = Counter(_code(name, kernel) for name, kernel in old.items())
    changed = []
    for name, kernel in new.items():
        code = _code(name, kernel)
        if missing[code]:
            missing[code] -= 1
        else:
            changed.append(f"{name} ({kernel['strategy']})")
    gone = sum(missing.values())
    if changed or gone:
        print(f"{title}: {len(changed)} of {len(new)} differ: {', '.join(changed)}")
    return not changed and not gone


def _code(name: str, kernel: dict[str, str]) -> str:
    """Assembly without the kernel's name, which depends on the numbering of passes."""
    return kernel["assembly"].replace(name, "KERNEL")


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "_" for c in name)


if __name__ == "__main__":
    sys.exit(main())
