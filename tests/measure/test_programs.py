"""Programs that measure the machine: they run the instructions that they count."""

from __future__ import annotations

import pytest

from blockwright.measure import peak_call, programs
from blockwright.target import Target

TILES = pytest.mark.skipif(not Target("native").has("amx-int8"), reason="this machine has no AMX")
DOTS = [
    *("", "dot2_bf16", "dot4_u8s8", "dot2_s16s16"),
    *(pytest.param(f"mma_16x16x{kind}", marks=TILES) for kind in ("64_u8s8", "32_bf16")),
]


@pytest.mark.parametrize("dot", DOTS)
def test_the_counted_operations_are_those_of_the_chains(
    dot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_ROUNDS", 1 << 6)
    results = []
    built = programs._built

    def kept(*args: object) -> object:
        run = built(*args)  # type: ignore[arg-type]
        return lambda a, b, out: (run(a, b, out), results.append(out))

    monkeypatch.setattr(programs, "_built", kept)
    call, operations = peak_call(1, dot=dot)
    call()
    (out,) = results
    # All operands are one, so that every multiply-add adds one to a lane.
    assert out.astype("float64").sum() == operations / 2
