"""Nodes that ONNX Runtime computes within the compiled model.

    selected = NonMaxSuppression(boxes, scores, …)

becomes a call of `onnxruntime.NonMaxSuppression` with a model of this one node. The types and sizes
of its results are those that ONNX infers; what it does not know is known when the node has run.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import numpy as np

from blockwright import ir
from blockwright.frontend.fallback import framework_results
from blockwright.frontend.onnx.call import Call, Value
from blockwright.frontend.onnx.model import element_type, onnx_package, type_number
from blockwright.frontend.onnx.sizes import array_of
from blockwright.graph import symbol_ranges
from blockwright.runtime.frameworks.call import OperatorCall
from blockwright.runtime.frameworks.onnx_operators import model_text, session
from blockwright.support import ImporterError

_SMALL = 64
"""Elements up to which a known operand is part of the node's model: ONNX infers sizes from it."""

_I64 = ir.dtype_of("int64")


def has_runtime() -> bool:
    """Whether ONNX Runtime is installed."""
    try:
        return bool(metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        return False


def framework_call(call: Call, label: str, opset: int) -> list[Value]:
    """The results of a node.

    Arguments: `label` is the operator's name with its domain.
    Raises: ImporterError BW501 if ONNX Runtime does not support the node, or it has results that
        are not tensors of known type and rank.
    """
    node = _OneNode(call)
    model = node.model(opset)
    infos = [node.result(value) for value in model.graph.output]
    text = model_text(model.SerializeToString())
    try:
        session(text)
    except Exception as error:
        raise _unsupported(f"ONNX Runtime does not run it: {error}") from error
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
        """The model, whose results have the types that ONNX infers."""
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
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        try:
            return onnx.shape_inference.infer_shapes(made, strict_mode=True, data_prop=True)
        except Exception as error:
            raise _unsupported(f"ONNX infers no type: {error}") from error

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
        """The annotation of a result; sizes that ONNX does not infer are new symbols."""
        kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
        if kind != "tensor_type" or not tensor.elem_type or not tensor.HasField("shape"):
            raise _unsupported("ONNX does not infer the type and rank of a tensor for its result")
        try:
            dtype = element_type(tensor.elem_type, "its result")
        except ImporterError as error:
            raise _unsupported(error.message) from error
        if np.dtype(dtype.numpy()).isbuiltin != 1:
            raise _unsupported(f"it gives {dtype}, which ONNX Runtime does not exchange")
        shape = tuple(self._size(dim) for dim in tensor.shape.dim)
        return ir.TensorInfo(shape, dtype, len(shape))

    def _size(self, dim: Any) -> ir.Expr:
        if dim.HasField("dim_value"):
            return ir.const(dim.dim_value, _I64)
        known = self._dims.get(dim.dim_param)
        if known is not None:
            return known
        label = f"{self.call.op.lower()}_size"
        symbol = ir.Var(self.call.imp.dimensions.unique(label), _I64)
        self._new.add(symbol)
        builder = self.call.imp.builder
        builder.analyzer.bind(symbol, symbol_ranges(builder.attrs, [symbol])[symbol])
        if dim.dim_param:
            self._dims[dim.dim_param] = symbol
        return symbol

    def is_late(self, info: ir.TensorInfo) -> bool:
        """Whether a size of a result is known only when the node has run."""
        return any(dim in self._new for dim in info.shape or ())
