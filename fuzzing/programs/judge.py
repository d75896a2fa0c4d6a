"""Compare the interpreter, the program after every lowering pass, and compiled code."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.build import build
from blockwright.build.call_checks import with_call_checks
from blockwright.interp import Limit
from blockwright.interp.sizes import evaluate
from blockwright.ir.attributes import LOWER_BOUND, UPPER_BOUND
from blockwright.support import ArgumentError, InterpretError, ValidationError
from blockwright.testing.arrays import Fenced, copied
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.programs.draw import script
from fuzzing.schedules.finding import Finding
from fuzzing.schedules.lowering import Stage, check_stages
from fuzzing.statements import Statement

Array = np.ndarray[Any, Any]
_CALLS = 4
_LIMIT = 4000
"""Limit on the iterations of a call."""
_DEFINED = {"BW702", "BW708", "BW712", "BW716"}
"""Errors that compiled code raises as well; after others the program is undefined."""
_CHECKS = {"BW708", "BW716"}
"""Errors of checks, which may be hoisted: of several that fail, any may be reported."""
_SAME = {"BW753": "BW712"}
"""Codes of the interpreter for errors that have another one in compiled code."""
_CONCURRENT = (ir.ForKind.PARALLEL, ir.ForKind.VECTORIZED)
_TARGETS = ("native", "native", "x86-64", "x86-64-v3")


class Call(msgspec.Struct, frozen=True, eq=False):
    """The arguments of a call, and what it must do: leave arrays, or raise an error.

    Attributes:
        several: whether concurrent iterations may fail in other ways too.
    """

    arrays: list[Array]
    numbers: list[int]
    code: str
    wanted: list[Array]
    several: bool


def judge(program: list[Statement], seed: int) -> Outcome:
    """Judge a program; "refused" if it has no call that is defined."""
    return judge_text(script(program), seed)


def judge_text(text: str, seed: int) -> Outcome:
    """Judge the text of a module."""
    try:
        module: Any = bw.from_source(text)
        calls = _calls(module, seed)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return _problem(error)
    if isinstance(calls, Outcome):
        return calls
    verdict = _other_runs(module, calls)
    if verdict.what == "passed":
        verdict = _lowered(module, calls, seed)
    return _compiled(module, calls, seed) if verdict.what == "passed" else verdict


def _problem(error: Exception) -> Outcome:
    """A finding, unless a call is rejected that passes one memory as two buffers."""
    if isinstance(error, ValidationError) and error.code == "BW260":
        return Outcome("refused", error.code, error.message)
    return problem_of(error)


# ---------------------------------------------------------------------------------- the calls
def _calls(module: ir.IRModule, seed: int) -> list[Call] | Outcome:
    """The calls that are defined, or the reason why none is."""
    main = module["main"]
    assert isinstance(main, ir.PrimFunc)
    handles = {var for var, _ in main.buffer_map}
    scalars = [p for p in main.params if p not in handles]
    functions = [f for f in module.functions.values() if isinstance(f, ir.PrimFunc)]
    concurrent = any(loop.kind in _CONCURRENT for f in functions for loop in ir.loops(f.body))
    result: list[Call] = []
    code = ""
    for number in range(_CALLS):
        chance = random.Random(f"{seed} {number}")
        size = (chance.randint(2, 8), chance.choice((0, 1)), 8, chance.choice((3, 9)))[number]
        numbers = [_number(main, p, chance, number) for p in scalars]
        arrays = [_array(b, {"n": size}, seed + number) for b in main.buffers]
        found, left = _interpreted(module, arrays, numbers)
        if found and found not in _DEFINED:
            code = found
        else:
            result.append(Call(arrays, numbers, found, left, bool(found) and concurrent))
    return result or Outcome("refused", code, "the program is undefined")


def _number(main: ir.PrimFunc, param: ir.Var, chance: random.Random, number: int) -> int:
    """A scalar: at both ends of its range, inside, and sometimes outside."""
    lower: Mapping[str, int] = main.attrs.get(LOWER_BOUND, {})
    upper: Mapping[str, int] = main.attrs.get(UPPER_BOUND, {})
    low = lower.get(param.name, param.dtype.min_value)
    high = upper.get(param.name, param.dtype.max_value)
    near = (max(low, -3), min(high, 7))
    inside = chance.randint(*near) if near[0] <= near[1] else low
    outside = chance.choice((low - 1, high + 1)) if chance.random() < 0.4 else inside
    return (inside, low, high, outside)[number]


def _array(buffer: ir.Buffer, sizes: dict[str, int], seed: int) -> Array:
    chance = np.random.default_rng([seed, len(buffer.name), ord(buffer.name[0])])
    shape = tuple(evaluate(n, sizes) for n in buffer.shape)
    if buffer.dtype.is_float:
        return (chance.integers(-32, 33, shape) / 4).astype(buffer.dtype.numpy())
    if buffer.name == "J":
        wide = chance.integers(0, 8, shape)
        return np.where(chance.random(shape) < 0.1, wide, wide % 4).astype(np.int32)
    ends = np.array([buffer.dtype.min_value, buffer.dtype.max_value], buffer.dtype.numpy())
    low = -4 if buffer.dtype.kind == "int" else 0
    small = chance.integers(low, 12, shape).astype(buffer.dtype.numpy())
    return np.where(chance.random(shape) < 0.05, chance.choice(ends, shape), small)


def _interpreted(
    program: Any, arrays: list[Array], numbers: list[int], **options: Any
) -> tuple[str, list[Array]]:
    """The code of the error, or "", and the arrays afterwards."""
    copies = copied(arrays)
    try:
        bw.interpret(program, *copies, *numbers, limit=Limit(_LIMIT), **options)
    except InterpretError as error:
        code = str(error.code)
        return _SAME.get(code, code), copies
    return "", copies


# ------------------------------------------------------------------------------ other runs
def _other_runs(module: ir.IRModule, calls: list[Call]) -> Outcome:
    """Run the printed text, iterations one by one, and concurrent loops in reverse order."""
    try:
        again: Any = bw.from_source(module.script())
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    runs: list[tuple[str, Any, dict[str, Any]]] = [
        ("printed", again, {}),
        ("iterations one by one", module, {"vectorize": False}),
        ("concurrent loops in reverse", module, {"order": "reverse"}),
    ]
    for call in calls:
        for what, program, options in runs:
            found, left = _interpreted(program, call.arrays, call.numbers, **options)
            if found != "BW757" and (words := _difference(call, found, left)):
                return Outcome("wrong", f"interpreter, {what}", words)
    return Outcome("passed")


def _lowered(module: ir.IRModule, calls: list[Call], seed: int) -> Outcome:
    """Run `main` after the passes; what they are handed has the checks of calls."""
    main = module["main"]
    assert isinstance(main, ir.PrimFunc)

    def check(stage: Stage) -> None:
        changed = module.replace(functions={**module.functions, "main": stage.program})
        for call in calls:
            found, left = _interpreted(changed, call.arrays, call.numbers)
            if found != "BW757" and (words := _difference(call, found, left)):
                raise AssertionError(words)

    try:
        checked = with_call_checks(main, module.functions, False)
        _, refused = check_stages(checked, check, seed)
    except Finding as error:
        return Outcome("wrong", error.symptom, str(error))
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    return Outcome("internal", f"rejected {refused}") if refused else Outcome("passed")


def _compiled(module: ir.IRModule, calls: list[Call], seed: int) -> Outcome:
    chance = random.Random(seed)
    target = chance.choice(_TARGETS)
    sanitize = ("bounds",) if chance.random() < 0.15 else ()
    try:
        run = build(module, target, sanitize=sanitize)["main"]
    except Exception as error:  # noqa: BLE001  what the interpreter runs compiles
        return _problem(error)
    for call in calls:
        fenced = Fenced(call.arrays)
        found = ""
        try:
            run(*fenced.arrays, *call.numbers)
        except ArgumentError as error:
            found = str(error.code)
        except Exception as error:  # noqa: BLE001  an internal error is a finding
            return problem_of(error)
        words = _difference(call, found, fenced.arrays)
        if not words and fenced.broken():
            words = "compiled code writes outside of its arguments"
        if words:
            return Outcome("wrong", f"compiled code{' with checks' if sanitize else ''}", words)
    return Outcome("passed")


def _difference(call: Call, code: str, left: list[Array]) -> str:
    """What differs from the interpreter, or ""; after an error, elements are unspecified."""
    numbers = f"numbers {call.numbers}"
    if (call.several and code in _DEFINED) or {code, call.code} == _CHECKS:
        return ""
    if code != call.code:
        return f"the error is {code or 'none'}, not {call.code or 'none'} ({numbers})"
    if code:
        return ""
    for place, (a, b) in enumerate(zip(call.wanted, left, strict=True)):
        if a.tobytes() != b.tobytes():
            bits = [x.view(f"u{x.itemsize}") for x in (a, b)]
            at = tuple(np.argwhere(bits[0] != bits[1])[0].tolist())
            return f"argument {place} at {at} is {b[at]}, not {a[at]} ({numbers}, {a.shape})"
    return ""
