"""Compile a graph function and compare its calls with NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

import blockwright as bw
from blockwright.support import ArgumentError
from fuzzing.eager.outcome import Outcome, problem_of
from fuzzing.graphs.program import Array, Graph, Inexact, Rejected
from fuzzing.smaller import smallest

G = TypeVar("G", bound=Graph)
_MOST = 80
"""Maximum number of smaller graphs to try."""


def judge(graph: Graph) -> Outcome:
    """Compile a graph once and call it for all its sizes."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", bw.BlockwrightWarning)  # of a strategy that failed
            executable = bw.compile(bw.from_source(graph.text()))
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    for sizes, arguments in graph.calls:
        try:
            expected: list[Array] | None = graph.expected(sizes, arguments)
            left = graph.left(sizes, arguments)
        except Rejected:
            expected, left = None, arguments
        except Inexact:
            continue
        verdict = call_judged(executable, arguments, expected, left)
        if verdict.what != "passed":
            return verdict
    return Outcome("passed")


def call_judged(
    executable: Any,
    arguments: Sequence[Array],
    expected: list[Array] | None,
    left: Sequence[Array],
) -> Outcome:
    """Judge one call; `expected` is None if it must be rejected, `left` the arguments after it."""
    given = [array.copy() for array in arguments]
    try:
        results: Any = executable(*given)
    except ArgumentError as error:
        if expected is None and error.code in ("BW704", "BW708"):
            return Outcome("passed")
        return problem_of(error)
    except Exception as error:  # noqa: BLE001  an internal error is a finding
        return problem_of(error)
    if expected is None:
        return Outcome("wrong", "accepted", "a checked cast does not hold")
    if any(not np.array_equal(x, y) for x, y in zip(given, left, strict=True)):
        return Outcome("wrong", "inputs", "the call leaves other arguments")
    listed: Sequence[Array] = [results] if hasattr(results, "dtype") else results
    for number, (found, wanted) in enumerate(zip(listed, expected, strict=True)):
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            text = (
                f"result {number} is {found.dtype}{found.shape}, not {wanted.dtype}{wanted.shape}"
            )
            return Outcome("wrong", "kind", text)
        if not np.array_equal(found, wanted):
            place = tuple(np.argwhere(found != wanted)[0].tolist())
            text = f"result {number} at {place}: {found[place]}, expected {wanted[place]}"
            return Outcome("wrong", "", text)
    return Outcome("passed")


# -------------------------------------------------------------------------------------- reduction
def reduced(graph: G, fails: Callable[[G], bool]) -> G:
    """The smallest graph found that still `fails`."""
    return smallest(graph, _smaller, fails, _MOST)


def _smaller(graph: G) -> Iterator[G]:
    if len(graph.outputs) > 1:
        for name in graph.outputs:
            yield graph.trimmed((name,))
    else:  # an operand of the last binding as the result
        tensors = graph.tensors
        used = graph.bindings[-1].uses if graph.bindings else frozenset[str]()
        for name in sorted(used & tensors):
            yield graph.trimmed((name,))
    if len(graph.calls) > 1:
        for call in graph.calls:
            yield msgspec.structs.replace(graph, calls=(call,))
    if graph.dataflow:
        yield msgspec.structs.replace(graph, dataflow=False)


def as_script(graph: Graph, verdict: Outcome, seed: int) -> str:
    """A script that fails as long as the fault exists."""
    calls: list[str] = []
    for sizes, arguments in graph.calls:
        try:
            expected = [_text(x) for x in graph.expected(sizes, arguments)]
            left = graph.left(sizes, arguments)
        except Rejected:
            expected, left = [], arguments
        except Inexact:
            continue
        given = "".join(f"        {_text(x)},\n" for x in arguments)
        wanted = "".join(f"        {x},\n" for x in expected)
        pairs = zip(left, arguments, strict=True)
        new = "".join(f"        {k}: {_text(x)},\n" for k, (x, y) in enumerate(pairs) if x is not y)
        calls.append(f"    ((\n{given}    ), (\n{wanted}    ), {{\n{new}    }}),\n")
    return _TEXT.format(
        symptom=verdict.symptom,
        words=verdict.words.replace('"""', "'''"),
        seed=seed,
        text=graph.text(),
        calls="".join(calls),
    )


def _text(array: Array) -> str:
    values = ", ".join(repr(x) for x in array.ravel().tolist())
    return f'np.array([{values}], "{array.dtype}").reshape({array.shape})'


_TEXT = """# {symptom}: {words}
# Found with seed {seed} by fuzzing.graphs.
import numpy as np

import blockwright as bw

TEXT = '''{text}'''
CALLS = [
{calls}]

executable = bw.compile(bw.from_source(TEXT))
for arguments, expected, left in CALLS:
    if not expected:  # a checked cast does not hold
        try:
            executable(*arguments)
        except bw.ArgumentError:
            continue
        raise AssertionError("accepted")
    found = executable(*arguments)
    for x, y in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)
    for number, x in left.items():  # arguments that are overwritten
        np.testing.assert_array_equal(arguments[number], x)
"""
