"""Sentence embeddings: a compiled artefact against PyTorch eager, on the same padded inputs.

PyTorch runs ``inference_mode`` with its fused attention; both use the same number of threads. The
batches are ragged, like tokenized text: the first row fills the whole sequence, the others are
between half and fully filled. (A batch of one therefore has no padding, and PyTorch drops the mask
altogether.)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import harness, record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from benchmarks.worker import Subject

POINTS = ((1, 16), (1, 128), (8, 64), (32, 128))
TOLERANCE = 1e-5


def padded_batch(batch: int, sequence: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return token ids and mask of a ragged batch, the same on every call."""
    random = np.random.default_rng(batch * 1000 + sequence)
    lengths = random.integers(sequence // 2, sequence, size=batch, endpoint=True)
    lengths[0] = sequence
    mask = (np.arange(sequence)[None, :] < lengths[:, None]).astype(np.int64)
    ids = random.integers(1000, 30_000, size=(batch, sequence), dtype=np.int64)
    return ids * mask, mask


class CompiledPeer:
    """A saved artefact, loaded without the compiler."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import blockwright as bw

        bw.set_num_threads(options["threads"])
        self._version = bw.__version__
        self._run = bw.load(options["artefact"])

    def about(self) -> dict[str, Any]:
        return {"version": self._version}

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        ids, mask = padded_batch(point["batch"], point["sequence"])
        return lambda: self._run(ids, mask)


class EagerPeer:
    """The PyTorch module in eager mode."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import torch

        from examples.minilm.model import load_model

        torch.set_num_threads(options["threads"])
        self._torch = torch
        self._model = load_model()

    def about(self) -> dict[str, Any]:
        return {
            "version": self._torch.__version__,
            "threads": self._torch.get_num_threads(),
            "vector": self._torch.backends.cpu.get_cpu_capability(),
        }

    def prepare(self, point: Mapping[str, Any]) -> Callable[[], Any]:
        arrays = padded_batch(point["batch"], point["sequence"])
        ids, mask = (self._torch.as_tensor(array) for array in arrays)
        enter = self._torch.inference_mode

        def call() -> Any:
            with enter():
                return self._model(ids, mask)

        return call


PEERS: dict[str, Callable[[Mapping[str, Any]], Subject]] = {
    "blockwright": CompiledPeer,
    "pytorch": EagerPeer,
}


def run(
    artefact: Path,
    *,
    threads: int = 2,
    settings: harness.Settings | None = None,
    on_point: Callable[[harness.PointResult], None] | None = None,
) -> list[harness.PointResult]:
    """Compare once at every point, write ``results/minilm.json`` and return the results."""
    common = {"threads": threads}
    before = harness.machine()
    results, about = harness.compare(
        "minilm",
        [
            harness.Peer("blockwright", {**common, "artefact": str(artefact.resolve())}),
            harness.Peer("pytorch", common),
        ],
        [{"batch": batch, "sequence": sequence} for batch, sequence in POINTS],
        threads=threads,
        tolerance=TOLERANCE,
        settings=settings,
        on_point=on_point,
    )
    found = {
        "threads": threads,
        "clock": (settings or harness.Settings()).clock,
        "peers": about,
        "points": [
            {**result.as_json(), "ratio": result.ratio("blockwright", "pytorch")}
            for result in results
        ],
    }
    record.write("minilm", before, found)
    return results


HEADER = (
    f"{'shape':>9} {'blockwright':>11} {'spread':>6} {'pytorch':>11} {'spread':>6}"
    f" {'ratio':>6} {'difference':>10} {'others':>6}"
)


def row(result: harness.PointResult) -> str:
    """One line: milliseconds, spread, ratio, largest difference, cores that others kept busy."""
    ours, theirs = result.timings["blockwright"], result.timings["pytorch"]
    shape = f"({result.point['batch']}, {result.point['sequence']})"
    return (
        f"{shape:>9} {ours.median * 1e3:>8.2f} ms {ours.spread:>6.1%}"
        f" {theirs.median * 1e3:>8.2f} ms {theirs.spread:>6.1%}"
        f" {result.ratio('blockwright', 'pytorch'):>6.2f} {result.largest_difference:>10.1e}"
        f" {result.others:>6.2f}"
    )


def main(artefact: Path, threads: int, settings: harness.Settings) -> None:
    """Compare and print the table."""
    print(HEADER)
    results = run(
        artefact,
        threads=threads,
        settings=settings,
        on_point=lambda result: print(row(result), flush=True),
    )
    if settings.clock == "wall" and any(result.disturbed for result in results):
        print("Other programs kept the machine busy (last column: cores); measure again later.")
