"""`blockwright run`: run a compiled model on arrays, without importing the compiler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from blockwright.cli.arrays import flatten, random_inputs, read_inputs, save_array, statistics
from blockwright.cli.session import output
from blockwright.runtime.executable import load
from blockwright.support import OptionError


def run_model(
    path: Path, inputs: Sequence[str], random: Sequence[str], seed: int, folder: Path | None
) -> None:
    """Call the model once; print shapes and statistics of its results, and save them.

    Raises: OptionError (BW92x) for invalid arguments; the errors of `load` and of the call.
    """
    executable = load(path)
    parameters = executable.signature.parameters
    values = read_inputs(inputs, parameters)
    values |= random_inputs(random, parameters, seed, values)
    missing = [p for p in parameters if p.name not in values]
    if missing:
        shown = ", ".join(f"{p.name}: {p.dtype}[{', '.join(map(str, p.shape))}]" for p in missing)
        raise OptionError(
            f"arguments missing: {shown}",
            code="BW923",
            help="give --input NAME=FILE.npy or --random NAME=SHAPE",
        )
    started = time.perf_counter()
    results = executable(**values)
    seconds = time.perf_counter() - started
    console = output()
    names = [result.name for result in executable.signature.results]
    for name, array in flatten(results, names):
        console.print(f"{name}  {statistics(array)}", markup=False)
        if folder is not None:
            console.print(f"  saved {save_array(folder, name, array)}", markup=False)
    console.print(f"first call: {seconds * 1e3:.2f} ms")
