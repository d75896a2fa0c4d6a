"""What a library for several targets costs: ``python -m benchmarks.targets [--threads N]``.

Each function is compiled for one target alone and for three; the artefacts are loaded as any user
of the FFI does, so that the call goes through the entry that chooses. The two are called in turns,
and the figure is the median of the paired differences:

- `small` adds 64 numbers, so its time is that of a call. The difference is what choosing costs.
- `layers` is a perceptron of some milliseconds. The ratio says whether the chosen code is the same.

The load times say what choosing costs once.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import blockwright as bw

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((64,), "float32"), y: R.Tensor((64,), "float32")):
        return R.add(x, y)
"""
LAYERS = """
@I.ir_module
class Module:
    @R.function
    def main(x: R.Tensor((256, 768), "float32"), w: R.Tensor((768, 768), "float32")):
        y = R.relu(R.matmul(x, w))
        return R.relu(R.matmul(y, w))
"""
LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")


def _inputs(*shapes: tuple[int, ...]) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32) for shape in shapes]


CASES = {
    "small": (SMALL, _inputs((64,), (64,)), 2000, 300),
    "layers": (LAYERS, _inputs((256, 768), (768, 768)), 1, 200),
}


def compare(source: str, inputs: list[Any], calls: int, rounds: int) -> str:
    """Time one function; returns a line of the table."""
    import tvm_ffi

    best = [level for level in LEVELS if bw.Target(level).is_host][-1]
    program = bw.from_source(source)
    given = [tvm_ffi.from_dlpack(each) for each in inputs]
    with tempfile.TemporaryDirectory() as folder:
        functions: list[Callable[..., Any]] = []
        loading: list[float] = []
        for name, target in (("one", best), ("several", list(LEVELS))):
            path = Path(folder, f"{name}.so")
            bw.compile(program, target=target, options={"fallback": "error"}).save(path)
            started = time.perf_counter()
            functions.append(tvm_ffi.load_module(str(path)).get_function("main"))
            loading.append(time.perf_counter() - started)
            functions[-1](*given)
        pairs = [[_seconds(f, given, calls) for f in functions] for _ in range(rounds)]
    one, several = (statistics.median(column) for column in zip(*pairs, strict=True))
    difference = statistics.median(b - a for a, b in pairs)
    ratio = statistics.median(b / a for a, b in pairs)
    return (
        f"{best:10} one {one * 1e6:9.3f} us  several {several * 1e6:9.3f} us  "
        f"difference {difference * 1e9:7.1f} ns  ratio {ratio:.3f}  "
        f"loaded in {loading[0] * 1e3:.2f} ms, {loading[1] * 1e3:.2f} ms"
    )


def _seconds(function: Callable[..., Any], given: list[Any], calls: int) -> float:
    started = time.perf_counter()
    for _ in range(calls):
        function(*given)
    return (time.perf_counter() - started) / calls


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    bw.set_num_threads(parser.parse_args().threads)
    for name, case in CASES.items():
        print(f"{name:8} {compare(*case)}")


if __name__ == "__main__":
    main()
