"""Bodies of operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockwright import ir
from blockwright.frontend.onnx.model import onnx_package, type_number


def has_body(schema: Any) -> bool:
    """Whether an operator is defined as a function."""
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(schema: Any, opset: int, node: Any, types: Sequence[Any]) -> Any:
    """The `FunctionProto` that defines an operator for a node; None if there is none.

    A body may depend on the attributes of the node and on the types of its inputs. Of several, the
    newest that is written for the model's opset or an older one is taken.
    """
    onnx = onnx_package()
    function = onnx.FunctionProto()
    if schema.has_function:
        version = _newest(schema.function_opset_versions, opset)
        function.ParseFromString(schema.get_function_with_opset_version(version))
        return function
    if not schema.has_context_dependent_function:
        return None
    version = _newest(schema.context_dependent_function_opset_versions, opset)
    content = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), [t.SerializeToString() for t in types]
    )
    function.ParseFromString(content)
    return _corrected(schema.name, function)


def _corrected(operator: str, function: Any) -> Any:
    """The function body of an operator; that of Bernoulli, which is inverted, is corrected."""
    if operator == "Bernoulli":
        for node in function.node:
            if node.op_type == "Greater":  # of a number drawn from [0, 1), and p
                node.op_type = "Less"
    return function


def _newest(versions: Sequence[int], opset: int) -> int:
    return max((v for v in versions if v <= opset), default=min(versions))


def type_proto(shape: Sequence[Any] | None, dtype: ir.DType) -> Any:
    """The `TypeProto` of a tensor; sizes that are not numbers stay unnamed."""
    onnx = onnx_package()
    dims = None
    if shape is not None:
        dims = [d if isinstance(d, int) else ir.const_int(d) for d in shape]
    return onnx.helper.make_tensor_type_proto(type_number(dtype), dims)
