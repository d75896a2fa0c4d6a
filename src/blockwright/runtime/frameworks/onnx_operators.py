"""Run nodes of ONNX models in ONNX Runtime, on the memory of compiled code.

Compiled code passes a model of one node, as text. A session is created for it at the first call and
kept. Arguments are zero-copy arrays; results are copied into the memory that is planned for them.
"""

from __future__ import annotations

import base64
import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from blockwright.runtime.arrays import to_numpy
from blockwright.runtime.frameworks.call import CallArguments, failed, mismatch, reader
from blockwright.runtime.threads import num_threads


def find(symbol: str) -> Callable[..., object] | None:
    """The function that runs nodes of a kind, such as "NonMaxSuppression". Raises: ImportError."""
    importlib.import_module("onnxruntime")
    return _Node(symbol)


def model_text(model: bytes) -> str:
    """A model of one node as text."""
    return base64.b64encode(model).decode()


def session(model: str) -> Any:
    """A session for a model as text, which uses at most the threads of compiled code.

    Raises: an error of ONNX Runtime if it does not support the model.
    """
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = num_threads()
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4  # errors are raised too
    return runtime.InferenceSession(
        base64.b64decode(model), options, providers=["CPUExecutionProvider"]
    )


class _Node:
    """Nodes of one kind, as a function of packed arguments."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._read = reader()
        self._sessions: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, *values: Any) -> Any:
        given = self._read(values)
        try:
            results = self._results(given)
        except Exception as error:
            raise failed(self._name, error) from error
        late = given.call.late
        if late is None:
            self._store(results, given.outputs)
            return None
        pairs = zip(results, late, strict=True)
        sizes = [size for result, unknown in pairs if unknown for size in result.shape]
        return (*results, np.asarray(sizes, np.int64))

    def _results(self, given: CallArguments) -> Sequence[Any]:
        model = given.call.named["model"]
        with self._lock:  # concurrent callers share one session, which may run concurrently
            held = self._sessions.get(model)
            if held is None:
                held = self._sessions[model] = session(model)
        arrays = [to_numpy(value) for value in given.inputs]
        named = {i.name: array for i, array in zip(held.get_inputs(), arrays, strict=True)}
        found: Sequence[Any] = held.run(None, named)
        return [np.ascontiguousarray(array) for array in found]

    def _store(self, results: Sequence[Any], outputs: Sequence[Any]) -> None:
        for number, (result, output) in enumerate(zip(results, outputs, strict=True)):
            place = to_numpy(output)
            if result.shape != place.shape or result.dtype != place.dtype:
                found, stated = (f"{a.dtype}{list(a.shape)}" for a in (result, place))
                raise mismatch(self._name, f"{found} as result {number}, not {stated}")
            place[...] = result
