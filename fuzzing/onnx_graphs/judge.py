"""Import and compile an ONNX graph, and compare its calls with those of ONNX Runtime."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec
import numpy as np

import blockwright as bw
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.onnx_graphs.evaluate import Expected, Invalid, computed, expected
from fuzzing.onnx_graphs.program import Array, Input, OnnxProgram
from fuzzing.smaller import smallest

_MOST = 80
"""Maximum number of smaller graphs to try."""


def judge(program: OnnxProgram, *, interpret: bool) -> Outcome:
    """Import a graph, compile it, and compare all its calls.

    Arguments:
        interpret: compare the interpreter's results of the imported graph too.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = bw.import_model(program.model(), fallback="error")
            executable = bw.compile(module)
    except Exception as problem:  # noqa: BLE001  an internal error is a finding
        return problem_of(problem)

    def interpreted(*arguments: Array) -> Any:
        return bw.interpret(module, *arguments)

    for call in program.calls:
        try:
            wanted = expected(program, call)
        except Invalid:
            continue
        for run in (executable, interpreted) if interpret else (executable,):
            verdict = _judged(run, list(call.values()), wanted)
            if verdict.what != "passed":
                where = "interpreter: " if run is interpreted else ""
                return msgspec.structs.replace(verdict, words=where + verdict.words)
    return Outcome("passed")


def _judged(run: Any, arguments: Sequence[Array], wanted: Expected) -> Outcome:
    given = [a.copy() for a in arguments]
    try:
        results = run(*given)
    except Exception as problem:  # noqa: BLE001  an internal error is a finding
        return problem_of(problem)
    if any(a.tobytes() != b.tobytes() for a, b in zip(given, arguments, strict=True)):
        return Outcome("wrong", "inputs", "the call changed its arguments")
    several = isinstance(results, (tuple, list))
    listed = cast("Sequence[Any]", results) if several else [results]
    if len(listed) != len(wanted.results):
        return Outcome("wrong", "kind", f"{len(listed)} results, not {len(wanted.results)}")
    pairs = zip(listed, wanted.results, wanted.allowed, strict=True)
    for number, (found, right, allowed) in enumerate(pairs):
        found = np.asarray(found)
        if found.shape != right.shape or found.dtype != right.dtype:
            text = f"result {number} is {found.dtype}{found.shape}, not {right.dtype}{right.shape}"
            return Outcome("wrong", "kind", text)
        if right.dtype.kind == "f":
            apart = np.abs(found.astype(np.float64) - right.astype(np.float64))
            bad = ~(apart <= allowed)
        else:
            bad = found != right
        if bad.any():
            place = tuple(np.argwhere(bad)[0].tolist())
            text = f"result {number} at {place}: {found[place]}, expected {right[place]}"
            return Outcome("wrong", "", f"{text}; {int(bad.sum())} of {bad.size} differ")
    return Outcome("passed")


# -------------------------------------------------------------------------------------- reduction
def reduced(program: OnnxProgram, fails: Callable[[OnnxProgram], bool]) -> OnnxProgram:
    """The smallest program found that still `fails`."""
    return smallest(program, _smaller, fails, _MOST)


def _smaller(program: OnnxProgram) -> Iterator[OnnxProgram]:
    if len(program.outputs) > 1:
        for name in program.outputs:
            yield program.trimmed([name])
        return
    last = program.nodes[-1]
    made = {name for node in program.nodes for name in node.outputs}
    for name in sorted(last.uses & made):  # an operand as the result
        yield program.trimmed([name])
    if len(program.calls) > 1:
        for call in program.calls:
            yield msgspec.structs.replace(program, calls=(call,))
        return
    for node in program.nodes[:-1]:  # a value as an input
        for name in node.outputs:
            smaller = _as_input(program, name) if name else None
            if smaller is not None:
                yield smaller
    if any(isinstance(d, str) for i in program.inputs for d in i.dims):
        yield _static(program)


def _as_input(program: OnnxProgram, name: str) -> OnnxProgram | None:
    """Replace a value by an input; for a program with one call."""
    values = program.given(program.calls[0])
    try:
        for node in program.nodes:
            found = computed(node, values, program.opset)
            values.update(zip((n for n in node.outputs if n), found, strict=True))
    except Invalid:
        return None
    array = values[name]
    made = Input(name, array.dtype.name, tuple(f"{name}_{k}" for k in range(array.ndim)))
    nodes = tuple(
        msgspec.structs.replace(n, outputs=tuple("" if o == name else o for o in n.outputs))
        for n in program.nodes
    )
    whole = msgspec.structs.replace(
        program,
        inputs=(*program.inputs, made),
        nodes=tuple(n for n in nodes if any(n.outputs)),
        calls=({**program.calls[0], name: array},),
    )
    return whole.trimmed(program.outputs)


def _static(program: OnnxProgram) -> OnnxProgram:
    call = program.calls[0]
    inputs = tuple(msgspec.structs.replace(i, dims=call[i.name].shape) for i in program.inputs)
    return msgspec.structs.replace(program, inputs=inputs)
