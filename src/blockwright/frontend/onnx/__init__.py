"""ONNX front end: import of ONNX models from files, bytes and protos."""

from blockwright.frontend.onnx.importer import from_onnx
from blockwright.frontend.onnx.model import is_onnx

__all__ = ["from_onnx", "is_onnx"]
