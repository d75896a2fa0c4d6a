"""Judge one node test: compile it, run it, compare the results with the expected ones."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

import blockwright as bw
from blockwright.frontend.onnx.model import onnx_package
from blockwright.support import (
    ArgumentError,
    BlockwrightError,
    GraphError,
    ImporterError,
    OptionError,
)

_REFUSALS = (ImporterError, GraphError, OptionError, ArgumentError)
_ROUNDS = 6  # each refusal names inputs to fix
_OTHER_DOMAINS = ("ai.onnx.ml", "ai.onnx.preview.training")
_NOT_TENSORS = ("Sequence", "Optional", "String", "SplitToSequence")
_EXCLUDED = frozenset({"ImageDecoder", "RegexFullMatch", "TfIdfVectorizer", "ConcatFromSequence"})


class Record(msgspec.Struct, frozen=True):
    """The outcome of a test.

    Attributes:
        what: "pass", "refused" (an error with a code that rejects the model), "wrong", "crash" (any
            other error, or the death of the process) or "out of scope".
        code: of the error.
        words: the start of the message.
        fixed: names of inputs that were fixed to the test's values.
    """

    name: str
    what: str
    code: str = ""
    words: str = ""
    fixed: tuple[str, ...] = ()
    seconds: float = 0.0


def out_of_scope(model: Any) -> bool:
    """Whether a test is about strings, sequences, optionals, images, training or other domains."""
    graph = model.graph
    values = [*graph.input, *graph.output]
    if any(v.type.WhichOneof("value") != "tensor_type" for v in values):
        return True
    if any(v.type.tensor_type.elem_type == 8 for v in values):  # strings
        return True
    return any(
        node.domain in _OTHER_DOMAINS
        or node.op_type in _EXCLUDED
        or node.op_type.startswith(_NOT_TENSORS)
        for node in graph.node
    )


def judge(test: Any, interpreted: bool = False) -> Record:
    """Compile and run a test, and compare its results.

    Args:
        interpreted: the imported graph is evaluated with the NumPy oracles of its operators.
    """
    if out_of_scope(test.model):
        return Record(test.name, "out of scope")
    started = time.perf_counter()
    fixed: dict[str, Any] = {}
    try:
        for inputs, expected in test.data_sets:
            fixed = {}
            results = _run(test.model, inputs, fixed, interpreted)
            why = _difference(results, expected, test.rtol, test.atol)
            if why:
                return Record(test.name, "wrong", "", why, tuple(fixed), _since(started))
    except BlockwrightError as error:
        limit = error.code == "BW610"  # a type that the target lacks
        kind = "refused" if limit or isinstance(error, _REFUSALS) else "crash"
        words = error.message.partition("\n")[0][:200]
        return Record(test.name, kind, error.code, words, tuple(fixed), _since(started))
    except Exception as error:  # noqa: BLE001  reported as what it is
        at = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({at.filename.split('/')[-1]}:{at.lineno})"
        return Record(test.name, "crash", "", words[:300], tuple(fixed), _since(started))
    return Record(test.name, "pass", "", "", tuple(fixed), _since(started))


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)


def _run(
    model: Any, inputs: Sequence[Any], fixed: dict[str, Any], interpreted: bool
) -> Sequence[Any]:
    """Compile and run, fixing the inputs that a refusal names."""
    given = {v.name: _array(a) for v, a in zip(model.graph.input, inputs, strict=False)}
    for _ in range(_ROUNDS):
        try:
            program = bw.import_model(model, dict(fixed), fallback="error")
        except ImporterError as error:
            names = re.findall(r'"(.*?)": …', error.help or "") if error.code == "BW523" else []
            if not names or all(name in fixed for name in names):
                raise
            fixed.update((name, given[name]) for name in names)
            continue
        free = [a for name, a in given.items() if name not in fixed]
        if not interpreted:
            return bw.compile(program)(*free)
        results: Any = bw.interpret(program, *free)
        return cast("tuple[Any, ...]", results) if isinstance(results, tuple) else [results]
    raise AssertionError("every round asks for more fixed inputs")


def _array(value: Any) -> np.ndarray[Any, Any]:
    """A value of a test, which may be a proto, as an array; elements below 8 bits take a byte."""
    if isinstance(value, onnx_package().TensorProto):
        value = onnx_package().numpy_helper.to_array(value)
    array = np.asarray(value)
    if array.dtype.name in ("int4", "int2", "uint4", "uint2"):
        return array.astype(np.int8 if array.dtype.name.startswith("int") else np.uint8)
    return array


def _difference(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> str:
    """How results differ from the expected ones by the rules of the ONNX package; "" if equal."""
    if len(results) != len(expected):
        return f"{len(results)} results instead of {len(expected)}"
    for position, (got, wanted) in enumerate(zip(results, expected, strict=True)):
        got, wanted = np.asarray(got), _array(wanted)
        if wanted.dtype.name == "float4_e2m1fn" and got.dtype == np.uint8:  # as calls return them
            got = got.view(wanted.dtype)
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            return f"result {position}: {got.dtype}{got.shape}, not {wanted.dtype}{wanted.shape}"
        if got.dtype.kind not in "iufb":  # types of ml_dtypes
            if got.dtype.name == "bfloat16":
                rtol = max(rtol, 2**-6)
            got, wanted = got.astype(np.float32), wanted.astype(np.float32)
        close = np.isclose(got, wanted, rtol=rtol, atol=atol, equal_nan=True)
        if not close.all():
            where = np.unravel_index(int(np.argmin(close)), close.shape)
            return (
                f"result {position}: {close.size - close.sum()} of {close.size} elements, such as "
                f"{got[where]} for {wanted[where]}"
            )
    return ""
