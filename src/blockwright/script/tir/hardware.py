"""Hardware intrinsics of TVMScript (`tvm_mma_sync`, `ptx_*`, …).

A call is kept as written: it parses, prints, and acts as an opaque operation with unknown side
effects in schedules. To execute it, a target or the interpreter must define the operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blockwright import ir
from blockwright.ir import DType, Expr
from blockwright.script.tir.values import call_type, to_expr
from blockwright.support import ScriptError

FIRST, SECOND = "first", "second"

# Name → result type: a type; FIRST if it is the first argument (or `dtype=`); SECOND if it is the
# type of the second argument.
HARDWARE: dict[str, str] = {
    "tvm_storage_sync": "int32", "tvm_thread_allreduce": "handle", "tvm_thread_invariant": "int32",
    "tvm_warp_activemask": "uint32", "tvm_warp_shuffle": SECOND, "tvm_warp_shuffle_up": SECOND,
    "tvm_warp_shuffle_down": SECOND, "tvm_warp_shuffle_xor": SECOND,
    "tvm_warp_ballot": "uint32", "tvm_warp_any": "bool", "tvm_warp_all": "bool",
    "tvm_load_matrix_sync": "handle", "tvm_store_matrix_sync": "handle", "tvm_mma_sync": "handle",
    "tvm_bmma_sync": "handle", "tvm_fill_fragment": "handle",
    "ptx_mma": FIRST, "ptx_mma_sp": FIRST, "ptx_ldmatrix": FIRST, "ptx_cp_async": FIRST,
    "ptx_cp_async_bulk": FIRST, "ptx_commit_group": "int32", "ptx_wait_group": "int32",
    "ptx_cp_async_barrier": "int32", "ptx_init_barrier_thread_count": "int32",
    "ptx_arrive_barrier": "int32", "ptx_arrive_barrier_expect_tx": "int32",
    "ptx_wait_barrier": "int32", "create_barriers": "int32", "mma_fill": FIRST, "mma_store": FIRST,
    "make_filled_simdgroup_matrix": "handle", "simdgroup_load": "handle",
    "simdgroup_store": "handle", "simdgroup_multiply_accumulate": "handle",
    "vectorlow": FIRST, "vectorhigh": FIRST, "vectorcombine": FIRST, "dp4a": "int32",
    "get_active_lane_mask": FIRST, "vscale": "int32", "call_llvm_intrin": FIRST,
    "call_llvm_pure_intrin": FIRST, "llvm_lookup_intrinsic_id": "uint32",
    "q_multiply_shift": "int32", "q_multiply_shift_per_axis": "int32",
    "ignore_loop_partition": "bool", "start_profile_intrinsic": "handle",
    "end_profile_intrinsic": "handle",
}  # fmt: skip

# Name → number of arguments without the type, for operations with a fixed number.
ARGUMENTS: dict[str, int] = {
    "tvm_storage_sync": 1, "tvm_warp_activemask": 0, "tvm_warp_shuffle": 5,
    "tvm_warp_shuffle_up": 5, "tvm_warp_shuffle_down": 5, "tvm_warp_shuffle_xor": 5,
    "tvm_warp_ballot": 2, "tvm_warp_any": 2, "tvm_warp_all": 2,
    "tvm_load_matrix_sync": 8, "tvm_store_matrix_sync": 8, "tvm_mma_sync": 8,
    "tvm_fill_fragment": 6, "ptx_ldmatrix": 7, "mma_fill": 3, "mma_store": 6,
    "ptx_commit_group": 0, "ptx_wait_group": 1, "ptx_arrive_barrier": 1, "ptx_wait_barrier": 1,
    "ptx_arrive_barrier_expect_tx": 2, "ptx_init_barrier_thread_count": 2,
    "ptx_cp_async_barrier": 1,
}  # fmt: skip
_VOTES = ("tvm_warp_ballot", "tvm_warp_any", "tvm_warp_all")


def hardware_call(name: str) -> Callable[..., Expr]:
    """The function that builds a call of a hardware operation."""
    result = HARDWARE[name]

    def call(*args: Any, dtype: str | DType | None = None) -> Expr:
        values = list(args)
        if result == FIRST and dtype is None:
            if not values or not isinstance(values[0], (str, DType)):
                raise ScriptError(
                    f"T.{name} needs its result type as first argument",
                    code="BW106",
                    help=f'write T.{name}("float32", …)',
                )
            dtype = values.pop(0)
        nodes = tuple(map(to_expr, values))
        if dtype is None and result == SECOND:
            if len(nodes) < 2:
                raise ScriptError(f"T.{name} takes a mask and a value", code="BW106")
            dtype = nodes[1].dtype
        wanted = ARGUMENTS.get(name, len(nodes))
        if len(nodes) != wanted:
            raise ScriptError(f"T.{name} takes {wanted} arguments, not {len(nodes)}", code="BW106")
        if name in _VOTES and not nodes[1].dtype.is_bool:
            raise ScriptError(
                f"T.{name} votes on a condition, not on {nodes[1].dtype}",
                code="BW107",
                help="write x != 0",
            )
        return ir.Call(name, nodes, call_type(result if dtype is None else dtype))

    call.__name__ = call.__qualname__ = name
    return call
