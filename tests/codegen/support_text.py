"""What compiled code calls, as text for programs that tests write in LLVM's language."""

from __future__ import annotations

from blockwright.codegen.abi.tensors import is_contiguous, tensor_data, tensor_of
from blockwright.codegen.llvm.module_emitter import ModuleEmitter
from blockwright.target import Target

TARGET = Target("x86-64-v2")

_DECLARATIONS = """
declare i32 @bw_tensor_alloc(ptr, i32, i32, ptr)
declare void @bw_return_tensor(ptr, ptr)
declare i32 @bw_return_tuple(ptr, ptr, i32)
declare i32 @bw_raise(ptr, ptr)
declare i32 @bw_parallel_for(ptr, ptr, i64)
"""


def _prelude() -> str:
    module = ModuleEmitter(TARGET)
    for function in (tensor_of, tensor_data, is_contiguous):
        function.define(module)
    return module.render() + _DECLARATIONS


PRELUDE = _prelude()
"""`bw_tensor_of`, `bw_tensor_data` and `bw_tensor_is_contiguous`, and declarations of functions of
the runtime and the thread pool."""
