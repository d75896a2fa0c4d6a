"""Compile the model and save it: ``python -m examples.minilm.compile_model MODEL.bwx``.

The last line printed is a JSON object with the seconds of each step. Run in a new process, it shows
the cost of a second compilation, with the kernels in the object cache.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from examples.minilm import engine, model


def main(path: Path) -> None:
    """Load, export, compile and save; print the times."""
    module = model.load_model()
    start = time.perf_counter()
    program = model.export(module)
    exported = time.perf_counter() - start
    compiled = engine.compile_program(program)
    compiled.save(path)
    times = {"export": exported, "compile": compiled.seconds, "stages": compiled.stages}
    print(json.dumps(times))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
