"""Compare the implementation of a tensor intrinsic with its meaning, when it is registered.

1. If the meaning states every rounding (`tested.regroups` is false), both programs run on symbols
   (`prove.unrolled`): bit vectors for integers, the same operations in the same order for floats.
2. Otherwise the verifier compares them (`prove.decide`), and run on symbols if it cannot decide.
3. What remains unknown is tested on the interpreter.
"""

from __future__ import annotations

import importlib.util

import numpy as np

from blockwright.intrin import IntrinVerdict, TensorIntrin
from blockwright.support import InterpretError, IRError
from blockwright.verify.verdict import Counterexample, Unknown

BY_VERIFIER = "up to the order of sums"
BY_SYMBOLS = "bit by bit"


def compare(intrin: TensorIntrin) -> IntrinVerdict:
    """Prove that the implementation computes the meaning, or test it.

    Raises:
        IRError: BW262 if there are inputs on which they differ.
    """
    from blockwright.verify.prove.tested import regroups, tested

    open_order = regroups(intrin.meaning)
    why = "islpy or z3-solver is not installed"
    if all(importlib.util.find_spec(name) is not None for name in ("islpy", "z3")):
        proved, why = _proved(intrin, open_order)
        if proved:
            return IntrinVerdict("proved", why)
    result = tested(intrin.meaning, intrin.implementation, open_order)
    if result.counterexample is not None:
        raise _refusal(intrin, result.counterexample)
    return IntrinVerdict("unknown", "; ".join(filter(None, (why, result.why))), result.count)


def _proved(intrin: TensorIntrin, open_order: bool) -> tuple[bool, str]:
    """Whether the pair is proved, and how or why not. Raises: IRError BW262 if it is refuted."""
    from blockwright.verify.prove.decide import decide
    from blockwright.verify.prove.tested import difference_on, has_floats
    from blockwright.verify.prove.unrolled import prove_unrolled

    verdict = decide(intrin.meaning, intrin.implementation)
    if verdict.counterexample is not None:
        raise _refusal(intrin, verdict.counterexample)
    floats = has_floats(intrin.meaning) or has_floats(intrin.implementation)
    if verdict and (open_order or not floats):
        return True, BY_VERIFIER
    try:
        arrays = prove_unrolled(intrin.meaning, intrin.implementation)
    except Unknown as problem:
        return False, "; ".join(dict.fromkeys(filter(None, (verdict.why, str(problem)))))
    if arrays is None:
        return True, BY_SYMBOLS
    try:
        example = difference_on(intrin.meaning, intrin.implementation, arrays)
    except InterpretError as error:
        return False, f"the interpreter cannot run a suspected counterexample: {error.message}"
    if example is None:
        return False, "a suspected counterexample does not show on the interpreter"
    raise _refusal(intrin, example)


def _refusal(intrin: TensorIntrin, example: Counterexample) -> IRError:
    pairs = zip(intrin.meaning.buffers, example.arrays, strict=True)
    shown = [
        f"{buffer.name} = {np.array2string(array, separator=', ', threshold=40, edgeitems=4)}"
        for buffer, array in pairs
    ]
    return IRError(
        f"tensor intrinsic {intrin.name!r}: the implementation does not compute the meaning: "
        + example.difference,
        code="BW262",
        help="correct the program that is wrong; bw.interpret runs each of them on the arguments "
        "below",
        notes=("they differ for", *shown),
    )
