"""Nodes that ONNX Runtime computes within the compiled model.

    y = com.microsoft.Inverse(x)

becomes a call of `onnxruntime.com.microsoft.Inverse` with a model of this one node. The types and
sizes of its results are those that ONNX Runtime infers; other sizes are known when it has run.
"""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.fallback import framework_results
from blockwright.frontend.onnx.call import Call, Value
from blockwright.frontend.onnx.model import onnx_package, type_number
from blockwright.frontend.onnx.sizes import array_of
from blockwright.graph import symbol_ranges
from blockwright.runtime.frameworks.call import OperatorCall
from blockwright.runtime.frameworks.onnx_operators import model_text, session
from blockwright.support import ImporterError

_SMALL = 64
"""Elements up to which a known operand is part of the node's model: sizes follow from it."""

_I64 = ir.dtype_of("int64")
_TYPE = re.compile(r"tensor\((float|double|float16|bool|u?int(?:8|16|32|64))\)")


def has_runtime() -> bool:
    """Whether ONNX Runtime is installed."""
    try:
        return bool(metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        return False


def framework_call(call: Call, label: str, opset: int) -> list[Value]:
    """The results of a node.

    Arguments: `label` is the operator's name with its domain.
    Raises: ImporterError BW501 if ONNX Runtime does not support the node, or it takes or gives
        something else than tensors of the usual types.
    """
    node = _OneNode(call)
    text = model_text(node.model(opset).SerializeToString())
    try:
        outputs = session(text).get_outputs()
    except Exception as error:
        raise _unsupported(f"ONNX Runtime does not run it: {error}") from error
    infos = [node.result(value) for value in outputs]
    late = tuple(node.is_late(info) for info in infos)
    stated = OperatorCall(
        len(node.operands), named={"model": text}, late=late if any(late) else None
    )
    values = framework_results(
        call.imp.builder, call.op.lower(), f"onnxruntime.{label}", node.operands, stated, (), infos
    )
    found = iter(values)
    return [next(found) if name else None for name in call.outputs]


def _unsupported(why: str) -> ImporterError:
    return ImporterError(f"the operator is not covered: {why}", code="BW501", help="replace it")


class _OneNode:
    """A model of one node.

    Attributes: `operands` are the values of its inputs, in order.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.operands: list[ir.GraphExpr] = []
        self._dims: dict[str, ir.Expr] = {}
        self._new: set[ir.Var] = set()

    def model(self, opset: int) -> Any:
        """The model; small operands that are known are part of it."""
        onnx, call = onnx_package(), self.call
        helper = onnx.helper
        names = [f"input{k}" if call.has(k) else "" for k in range(len(call.operands))]
        outputs = [f"output{k}" if name else "" for k, name in enumerate(call.outputs)]
        inputs: list[Any] = []
        constants: list[Any] = []
        for position, name in enumerate(names):
            known = array_of(call.operands[position]) if name else None
            if known is not None and known.size <= _SMALL:
                constants.append(onnx.numpy_helper.from_array(known, name))
            elif name:
                inputs.append(self._input(name, call.tensor(position)))
        node = onnx.NodeProto()
        node.CopyFrom(call.node)
        del node.input[:], node.output[:]
        node.input.extend(names)
        node.output.extend(outputs)
        empty = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
        graph = helper.make_graph([node], "node", inputs, empty, constants)
        domains = {"": self._opset(call, opset), call.domain: opset}
        imports = [helper.make_opsetid(d, v) for d, v in domains.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    @staticmethod
    def _opset(call: Call, opset: int) -> int:
        return call.imp.scope.opsets.get("", opset)

    def _input(self, name: str, value: ir.GraphExpr) -> Any:
        """The declaration of an input; its symbolic sizes have the names of symbols."""
        self.operands.append(value)
        info = value.tensor_info
        assert info.dtype is not None
        assert info.shape is not None
        if np.dtype(info.dtype.numpy()).isbuiltin != 1:
            raise _unsupported(f"it takes {info.dtype}, which ONNX Runtime does not exchange")
        dims = [self._dimension(dim) for dim in info.shape]
        return onnx_package().helper.make_tensor_value_info(name, type_number(info.dtype), dims)

    def _dimension(self, dim: ir.Expr) -> int | str:
        number = ir.const_int(dim)
        if number is not None:
            return number
        for name, known in self._dims.items():
            if ir.structural_equal(known, dim):
                return name
        name = f"size{len(self._dims)}"
        self._dims[name] = dim
        return name

    def result(self, value: Any) -> ir.TensorInfo:
        """The annotation of a result; sizes that ONNX Runtime does not infer are new symbols."""
        name = _TYPE.fullmatch(str(value.type))
        if name is None:
            raise _unsupported(f"its result is of the type {value.type or 'that is unknown'}")
        dtype = ir.dtype_of({"float": "float32", "double": "float64"}.get(name[1], name[1]))
        shape = tuple(map(self._size, value.shape))
        return ir.TensorInfo(shape, dtype, len(shape))

    def _size(self, dim: int | str | None) -> ir.Expr:
        if isinstance(dim, int):
            return ir.const(dim, _I64)
        known = None if dim is None else self._dims.get(dim)
        if known is not None:
            return known
        label = f"{self.call.op.lower()}_size"
        symbol = ir.Var(self.call.imp.dimensions.unique(label), _I64)
        self._new.add(symbol)
        builder = self.call.imp.builder
        builder.analyzer.bind(symbol, symbol_ranges(builder.attrs, [symbol])[symbol])
        if dim is not None:
            self._dims[dim] = symbol
        return symbol

    def is_late(self, info: ir.TensorInfo) -> bool:
        """Whether a size of a result is known only when the node has run."""
        return any(dim in self._new for dim in info.shape or ())
