"""Generate random tensor programs; a seed gives the same program on every machine.

A program grows by stages, each of which computes a new tensor from existing ones. Tensors that no
later stage uses become outputs. Stages are numerically benign: values stay of order one and results
depend continuously on inputs, so that two correct programs agree within rounding.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from blockwright import ir
from blockwright.interp import interpret
from blockwright.ir.attributes import LOWER_BOUND
from blockwright.script.compute import Tensor
from blockwright.support import InterpretError
from blockwright.testing.arrays import make_arrays, random_sizes
from blockwright.testing.generators.beside import Beside
from blockwright.testing.generators.extents import Extents
from blockwright.testing.generators.forms import FORMS, with_strides
from blockwright.testing.generators.names import with_second_names
from blockwright.testing.generators.nests import Nests
from blockwright.testing.generators.parts import StageMakers
from blockwright.testing.generators.steered import with_data_conditions
from blockwright.testing.generators.unusual import Unusual
from blockwright.testing.generators.usual import Usual

STAGES = (
    "unary",
    "binary",
    "broadcast",
    "reduce",
    "stencil",
    "pad",
    "transpose",
    "gather",
    "matmul",
    "narrow",
    "where",
    "conv",
    "centre",
    "extreme",
    "moments",
    "epilogue",
    "mirror",
    "windows",
    "concat",
    "border",
    "integers",
    "large",
)
UNUSUAL = (
    "chosen",
    "inner",
    "several",
    "update",
    "scatter",
    "early",
    "counted",
    "guarded",
    "tally",
    "recur",
    "running",
    "triangle",
    "corner",
    "interior",
    "parallel",
    "diagonal",
    "viewed",
    "places",
    "nested",
    "branch",
    "skipped",
    "bare",
    "part",
    "steps",
    "part_sum",
    "blended",
    "behind",
    "woven",
    "rows",
    "sums",
    "best",
    "atomic",
    "tallied",
    "picked",
)
"""Stages with blocks that do more than store one element (`generators.unusual`), with unusual loops
(`nests`), with extents that may be 0 (`extents`), with declared views of parts (`parts`), or with
reductions in one block or atomic updates (`beside`)."""

_NAMED = 0.25  # fraction of programs with unusual stages that get second names
_STEERED = 0.1  # fraction of these in which a block runs depending on data
_STRIDED = 0.08  # fraction of these whose allocated buffers get strides
_SHORT = 0.05
"""Fraction of these with a sum that skips some or all steps of its domain."""
_EMPTY = 0.15
"""Fraction of these that may have tensors without elements in fixed shapes."""


class _Maker(Usual, Unusual, Nests, Extents, StageMakers, Beside):
    """Combines all kinds of stages."""

    def stage(self, kind: str) -> None:
        method: Callable[[], Tensor] = getattr(self, f"_{kind}")
        self.made(method())


def random_program(
    seed: int,
    *,
    stages: int | None = None,
    symbolic: bool | None = None,
    dtype: str = "float32",
    unusual: bool = False,
) -> ir.PrimFunc:
    """Generate a random program with the attribute "num_outputs".

    Args:
        seed: determines the program.
        stages: number of blocks; 1 to 5 by default.
        symbolic: whether dimensions may be symbols; by default the seed decides.
        dtype: element type of the float tensors.
        unusual: whether the stages of `UNUSUAL` are drawn too, and buffers and values may have
            second names.
    """
    kinds = (*STAGES, *UNUSUAL) if unusual else STAGES
    empty = unusual and random.Random(f"{seed} empty").random() < _EMPTY
    result = _drawn(seed, stages, symbolic, dtype, kinds, empty)
    if empty and not _runs(result, seed, random_sizes(result, seed)):
        result = _drawn(seed, stages, symbolic, dtype, kinds, empty=False)
    if not unusual:
        return result
    second = random.Random(f"{seed} second names")
    if second.random() < _NAMED:
        result = with_second_names(result, second)
    for change, share in (*FORMS, (with_data_conditions, _STEERED)):
        if second.random() < share:
            result = change(result, second)
    layout = random.Random(f"{seed} strides")  # leaves other choices as they are
    return with_strides(result, layout) if layout.random() < _STRIDED else result


def _drawn(
    seed: int,
    stages: int | None,
    symbolic: bool | None,
    dtype: str,
    kinds: Sequence[str],
    empty: bool,
) -> ir.PrimFunc:
    chance = random.Random(seed)
    sized = chance.random() < 0.4 if symbolic is None else symbolic
    maker = _Maker(chance, sized, dtype, seed, empty=empty)
    for _ in range(stages or chance.randint(1, 5)):
        maker.stage(chance.choice(kinds))
    apart = random.Random(f"{seed} short sum")  # so that other stages do not change
    if len(kinds) > len(STAGES) and apart.random() < _SHORT:
        maker.chance = apart
        maker.stage("short_sum")
        maker.chance = chance
    result = maker.finish()
    if maker.symbols:
        result = _with_min_sizes(result, seed, 0 if chance.random() < 0.5 else 1)
    return result


def _with_min_sizes(program: ir.PrimFunc, seed: int, minimum: int) -> ir.PrimFunc:
    """Set the smallest lower bounds, from `minimum` on, at which the program is valid.

    A gather from an axis without elements is not valid, for example.
    """
    names: dict[str, int] = program.attrs[LOWER_BOUND]
    for low in range(minimum, 4):
        attrs = {**program.attrs, LOWER_BOUND: dict.fromkeys(names, low)}
        changed = program.replace(attrs=attrs)
        sizes = [
            {n: low if n in few else low + 3 for n in names}
            for few in ([*names], *([n] for n in names))
        ]
        if all(_runs(changed, seed, given) for given in sizes):
            return changed
    return program


def _runs(program: ir.PrimFunc, seed: int, sizes: dict[str, int]) -> bool:
    try:
        interpret(program, *make_arrays(program, seed, sizes))
    except InterpretError:
        return False
    return True
