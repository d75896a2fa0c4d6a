"""The classic surface of the `T` dialect, name by name: it round-trips, or says what to write."""

from __future__ import annotations

import textwrap

import pytest

from blockwright import ir
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.script.tir.classic import REPLACED
from blockwright.support import ScriptError

# Every name that the classic dialect exports (types apart).
CLASSIC = """
    Add And Assert Broadcast Buffer BufferLoad Call CallEffectKind Cast CommReducer Div EQ Else
    FloatImm FloorDiv FloorMod GE GT If IntImm IterVar LE LT Let LetStmt Max Min Mod Mul NE Not Or
    ProducerLoad Ptr Ramp Range Reduce Select Shuffle SizeVar StringImm Sub TVMBackendAllocWorkspace
    TVMBackendFreeWorkspace Then Var While abs acos acosh address_of all alloc_buffer allocate
    allocate_const any anylist_getitem anylist_resetitem anylist_setitem_call_cpacked
    anylist_setitem_call_packed arg asin asinh assume atan atan2 atanh attr axis bitwise_and
    bitwise_not bitwise_or bitwise_xor block block_attr boolean broadcast buffer buffer_decl
    buffer_store buffer_var call_cpacked call_cpacked_lowered call_extern call_intrin call_kernel
    call_llvm_intrin call_llvm_pure_intrin call_packed call_packed_lowered call_pure_extern cast
    ceil ceildiv clz comm_reducer copysign cos cosh create_barriers decl_buffer div dp4a
    end_profile_intrinsic env_thread erf evaluate exp exp10 exp2 fabs floor floordiv floormod fma
    fmod func_attr func_name func_ret get_active_lane_mask grid handle hypot if_then_else
    ignore_loop_partition index_map indexdiv indexmod infinity init inline isfinite isinf isnan
    isnullptr iter_var launch_thread ldexp let likely llvm_lookup_intrinsic_id log log10 log1p log2
    lookup_param macro make_filled_simdgroup_matrix match_buffer max max_value meta_var min
    min_value mma_fill mma_store nearbyint nextafter parallel popcount pow power prefetch
    preflattened_buffer prim_func ptr ptx_arrive_barrier ptx_arrive_barrier_expect_tx
    ptx_commit_group ptx_cp_async ptx_cp_async_barrier ptx_cp_async_bulk
    ptx_init_barrier_thread_count ptx_ldmatrix ptx_mma ptx_mma_sp ptx_wait_barrier ptx_wait_group
    q_multiply_shift q_multiply_shift_per_axis ramp reads realize reinterpret ret round rsqrt serial
    shift_left shift_right sigmoid simdgroup_load simdgroup_multiply_accumulate simdgroup_store sin
    sinh sqrt start_profile_intrinsic store load tan tanh target thread_binding thread_return trunc
    truncdiv truncmod tvm_access_ptr tvm_bmma_sync tvm_call_cpacked tvm_call_cpacked_lowered
    tvm_call_packed tvm_call_packed_lowered tvm_check_return tvm_fill_fragment tvm_load_matrix_sync
    tvm_mma_sync tvm_stack_alloca tvm_stack_make_array tvm_stack_make_shape tvm_storage_sync
    tvm_store_matrix_sync tvm_struct_get tvm_struct_set tvm_thread_allreduce tvm_thread_invariant
    tvm_throw_last_error tvm_tuple tvm_warp_activemask tvm_warp_shuffle tvm_warp_shuffle_down
    tvm_warp_shuffle_up type_annotation undef unroll var vectorcombine vectorhigh vectorized
    vectorlow void vscale where writes
""".split()
TYPES = [
    f"{kind}{bits}{lanes}"
    for kind in ("int", "uint")
    for bits in (8, 16, 32, 64)
    for lanes in ("", "x4", "x8", "x16", "x32", "x64")
]
TYPES += [
    f"{kind}{lanes}"
    for kind in (
        *("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"),
    )
    for lanes in ("", "x4", "x8", "x16")
]
TYPES += ["bool", "handle", "int4", "uint4"]
OTHER_TYPES = [
    "float8_e4m3",
    "float6_e2m3fn",
    "float8_e4m3b11fnuz",
]

PARAMS = 'A: T.Buffer((16, 16), "float32"), J: T.Buffer((16,), "int32"), n: T.int32'

# Expressions of one name, written with the parameters above; several are joined by `;`.
EXPRESSIONS = {
    **dict.fromkeys(
        "abs fabs acos acosh asin asinh atan atanh ceil cos cosh erf exp exp2 exp10 floor isfinite "
        "isinf isnan log log1p log2 log10 nearbyint round rsqrt sigmoid sin sinh sqrt tan tanh "
        "trunc".split(), "T.{name}(A[0, 0])"),
    **dict.fromkeys("clz popcount bitwise_not dp4a vscale".split(), "T.{name}(J[0])"),
    **dict.fromkeys("atan2 copysign fmod hypot nextafter pow power Add Sub Mul Div Min Max min max "
                    "EQ NE LT LE GT GE".split(), "T.{name}(A[0, 0], A[1, 1])"),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor shift_left shift_right floordiv floormod "
                    "truncdiv truncmod ceildiv FloorDiv FloorMod Mod div indexdiv indexmod".split(),
                    "T.{name}(n, 3)"),
    "ldexp": "T.ldexp(A[0, 0], n)",
    **dict.fromkeys("And Or all any".split(), "T.{name}(n > 0, n < 4)"),
    **dict.fromkeys("Not likely ignore_loop_partition".split(), "T.{name}(n > 0)"),
    **dict.fromkeys("Select if_then_else".split(), "T.{name}(n > 0, A[0, 0], T.float32(1))"),
    **dict.fromkeys("broadcast Broadcast".split(), "T.{name}(n, 4)"),
    **dict.fromkeys("ramp Ramp".split(), "T.{name}(n, 2, 4)"),
    **dict.fromkeys("cast Cast".split(), 'T.Cast("int64", n); T.cast(n, "int64")'),
    **dict.fromkeys("call_packed tvm_call_packed".split(), 'T.{name}("f", A.data, n)'),
    **dict.fromkeys("call_llvm_intrin call_llvm_pure_intrin".split(),
                    'T.{name}("float32", "llvm.sqrt.f32", T.uint32(1), A[0, 0]);'
                    'T.{name}("int32", "llvm.x", T.llvm_lookup_intrinsic_id("llvm.abs"))'),
    **dict.fromkeys("vectorlow vectorhigh".split(),
                    'T.{name}("float32x4", T.broadcast(A[0, 0], 8))'),
    **dict.fromkeys("ptx_commit_group create_barriers tvm_warp_activemask".split(), "T.{name}()"),
    **dict.fromkeys("ptx_wait_group start_profile_intrinsic end_profile_intrinsic ret "
                    "tvm_thread_invariant ptx_wait_barrier llvm_lookup_intrinsic_id".split(),
                    "T.{name}(1)"),
    **dict.fromkeys("tvm_warp_shuffle tvm_warp_shuffle_up tvm_warp_shuffle_down".split(),
                    "T.{name}(T.tvm_warp_activemask(), A[0, 0], 1, 32, 32)"),
    **dict.fromkeys("tvm_mma_sync tvm_bmma_sync simdgroup_multiply_accumulate".split(),
                    "T.{name}(A.data, 0, A.data, 0, A.data, 0, A.data, 0)"),
    **dict.fromkeys("tvm_load_matrix_sync tvm_store_matrix_sync simdgroup_load simdgroup_store"
                    .split(), 'T.{name}(A.data, 16, 16, 16, 0, A.data, 16, "row_major")'),
    **dict.fromkeys("tvm_fill_fragment make_filled_simdgroup_matrix".split(),
                    "T.{name}(A.data, 16, 16, 16, 0, T.float32(0))"),
    **dict.fromkeys("ptx_mma ptx_mma_sp".split(), 'T.{name}("float32", "m16n8k16", "row", "col", '
                    '"fp16", "fp16", "fp32", A.data, 0, A.data, 0, A.data, 0, False)'),
    **dict.fromkeys("ptx_cp_async ptx_cp_async_bulk".split(),
                    'T.{name}("float32", A.data, 0, A.data, 0, 16)'),
    **dict.fromkeys("ptx_cp_async_barrier ptx_arrive_barrier".split(), "T.{name}(0)"),
    **dict.fromkeys("ptx_init_barrier_thread_count ptx_arrive_barrier_expect_tx".split(),
                    "T.{name}(0, 128)"),
    **dict.fromkeys("q_multiply_shift q_multiply_shift_per_axis".split(), "T.{name}(n, 3, 4, 5)"),
    "fma": "T.fma(A[0, 0], A[0, 1], A[0, 2])",
    "address_of": "T.address_of(A[0, 0])",
    "call_extern": 'T.call_extern("int32", "f", A.data); T.call_extern("f", n, dtype="float32")',
    "call_pure_extern": 'T.call_pure_extern("float32", "expf", A[0, 0])',
    "call_intrin": 'T.call_intrin("handle", "tir.tvm_thread_allreduce", n)',
    "tvm_thread_allreduce": "T.tvm_thread_allreduce(T.uint32(1), A[0, 0], True, A.data, n)",
    "tvm_storage_sync": 'T.tvm_storage_sync("shared")',
    "ptx_ldmatrix": 'T.ptx_ldmatrix("float16", False, 4, ".b16", A.data, 0, A.data, 0)',
    "mma_fill": 'T.mma_fill("float32", 8, A.data, 0)',
    "mma_store": 'T.mma_store("float32", 16, 16, A.data, A.data, 0, 16)',
    "vectorcombine": 'T.vectorcombine("float32x8", T.broadcast(A[0, 0], 4), '
                     "T.broadcast(A[0, 1], 4))",
    "get_active_lane_mask": 'T.get_active_lane_mask("boolx4", n, 4)',
    "tvm_access_ptr": 'T.tvm_access_ptr(T.type_annotation("int32"), J.data, n, 4, 1);'
                      'A.access_ptr("r")',
    "type_annotation": 'T.tvm_access_ptr(T.type_annotation("float32"), A.data, 0, 4, 1)',
    "reinterpret": 'T.reinterpret("int32", A[0, 0]); T.reinterpret(A[0, 0], dtype="uint32")',
    "undef": 'T.undef(); T.undef(dtype="float32")',
    "infinity": 'T.infinity("float32")',
    "min_value": 'T.min_value("int8")',
    "max_value": 'T.max_value("bfloat16")',
    "IntImm": 'T.IntImm("int64", 3)', "FloatImm": 'T.FloatImm("float32", 3.0)',
    "StringImm": 'T.StringImm("a")', "BufferLoad": "T.BufferLoad(A, [0, 0])",
    "Call": 'T.Call("float32", "tir.exp", [A[0, 0]])',
    "Let": "T.Let(x * x, where={x: n + 1})",
    "Shuffle": "T.Shuffle([T.broadcast(n, 4)], [0, 2])",
    "prefetch": "T.prefetch(T.address_of(A[0, 0]), 0, 3)",
    "boolean": "T.boolean(True)",
}  # fmt: skip

_BLOCK = """
for i, j, k in T.grid(16, 16, 16):
    with T.block("b"):
        vi = T.axis.S(16, i)
        vj = T.axis.spatial((0, 16), j)
        vk = T.axis.R(16, k)
        T.where(i < 4)
        T.reads(A[vi, vj], [J[vk]])
        T.writes([A[vi, vj]])
        T.block_attr({"x": 1})
        with T.init():
            A[vi, vj] = T.float32(0)
        A[vi, vj] = A[vi, vj] + T.Cast("float32", J[vk])
"""
_CHOICE = """
with T.If(n > 0):
    with T.Then():
        J[0] = 1
    with T.Else():
        J[0] = 2
"""
STATEMENTS = {
    **dict.fromkeys("grid block axis where reads writes block_attr init".split(), _BLOCK),
    **dict.fromkeys("If Then Else".split(), _CHOICE),
    **dict.fromkeys("serial parallel vectorized unroll".split(),
                    "for i in T.{name}(0, 16, annotations={{'x': 1}}):\n    J[i] = 1"),
    "thread_binding": "for i in T.thread_binding(0, 16, thread='threadIdx.x'):\n    J[i] = 1",
    "While": "with T.While(n > J[0]):\n    J[0] += 1",
    "Assert": "with T.Assert(n > 0, 'positive'):\n    J[0] = 1\nT.Assert(n > 1, 'more')",
    "evaluate": "T.evaluate(T.call_extern('f', n))",
    "assume": "T.assume(n > 3)\nT.evaluate(T.assume(n > 4))",
    "func_attr": "T.func_attr({{'tir.noalias': True}})\nJ[0] = 1",
    "alloc_buffer": "B = T.alloc_buffer([4], 'float32', None, None, 0, 'local')\nB[0] = 1.0",
    "allocate": "B = T.allocate([128], 'float32', 'shared')\n"
                "B_1 = T.Buffer((128,), data=B, scope='shared')\nB_1[0] = 1.0",
    "allocate_const": "B = T.allocate_const([1.0, 2.0], 'float32', [2])\nA[0, 0] = B[1]",
    "decl_buffer": "B = T.decl_buffer((256,), 'float32', data=A.data)\nB[0] = 1.0\n"
                   "C = T.decl_buffer((4,), 'int8')\nC[0] = T.int8(1)",
    "buffer_decl": "B = T.buffer_decl([256], dtype='float32', data=A.data)\nB[0] = 1.0",
    "buffer": "B = T.buffer((256,), 'float32', data=A.data)\nB[0] = 1.0",
    "Buffer": "B = T.Buffer((256,), 'float32', data=A.data, strides=[1], elem_offset=n)\n"
              "B[0] = 1.0",
    "buffer_store": "T.buffer_store(A, 1.0, [0, 0])",
    "match_buffer": "with T.block('b'):\n"
                    "    s0, s1 = T.int32(), T.int32()\n"
                    "    B = T.match_buffer(A[0:4, 0:4], [4, 4], strides=[s0, s1],\n"
                    "                       elem_offset=T.int32(), offset_factor=4)\n"
                    "    B[0, 0] = 1.0",
    "attr": "T.attr(A, 'storage_alignment', 16)\nJ[0] = 1",
    **dict.fromkeys("iter_var Range".split(),
                    "v = T.int32()\nwith T.attr(T.iter_var(v, T.Range(0, 4), 'DataPar', ''), "
                    "'pragma', 4):\n    J[0] = 1"),
    "env_thread": "tx = T.env_thread('threadIdx.x')\nbx = T.env_thread('blockIdx.x')\n"
                  "with T.launch_thread(tx, 16), T.launch_thread(bx, 16):\n    A[tx, bx] = 1.0",
    "launch_thread": "tx = T.launch_thread('threadIdx.x', 16)\nJ[tx] = 1",
    "LetStmt": "with T.LetStmt(n + 1) as x:\n    J[0] = x\n"
               "y = T.int32()\nwith T.LetStmt(n + 2, var=y):\n    J[0] = y",
    "let": "x = T.var('int32')\nwith T.let(x, n + 1):\n    J[0] = x\n"
           "y = T.int32()\nJ[1] = T.let(y, n + 2, y * y)",
    "target": "T.func_attr({{'target': T.target('llvm')}})\nJ[0] = 1",
    "meta_var": "x = T.meta_var(n + 1)\nJ[0] = x",
    "comm_reducer": "for i in range(16):\n    with T.block('r'):\n"
                    "        vi = T.axis.reduce(16, i)\n"
                    "        r = T.comm_reducer(lambda x, y: x + y, [T.int32(0)])\n"
                    "        r.step(J[0], J[vi])",
    **dict.fromkeys("var Var SizeVar".split(),
                    "x = T.{name}('x', 'int32')\nJ[0] = T.let(x, n, x + 1)"),
}  # fmt: skip

# Names that stand in other places: signatures, decorators, the IR builder (see their tests).
ELSEWHERE = set("prim_func macro inline arg func_name handle Ptr ptr".split())


def parsed(body: str, params: str = PARAMS) -> ir.PrimFunc:
    return from_source(f"@T.prim_func\ndef f({params}):\n{textwrap.indent(body, '    ')}\n")


def round_trips(func: ir.PrimFunc) -> None:
    text = repr(func)
    again = from_source(text)
    ir.assert_structural_equal(again, func)
    assert repr(again) == text


def test_every_classic_name_is_accounted_for() -> None:
    known = {*EXPRESSIONS, *STATEMENTS, *ELSEWHERE, *REPLACED}
    assert set(CLASSIC) - known == {"IterVar"}  # a class that scripts do not call
    assert not (set(EXPRESSIONS) | set(STATEMENTS)) & set(REPLACED)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_round_trip(name: str) -> None:
    lines = [f"T.evaluate({part.strip()})" for part in EXPRESSIONS[name].split(";")]
    round_trips(parsed("\n".join(lines).replace("{name}", name)))


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_round_trip(name: str) -> None:
    text = STATEMENTS[name].replace("{name}", name).replace("{{", "{").replace("}}", "}")
    round_trips(parsed(text))


@pytest.mark.parametrize("name", TYPES)
def test_types_are_parameters_constants_and_conversions(name: str) -> None:
    round_trips(parsed("T.evaluate(x)", f"x: T.{name}"))
    if name != "handle":
        round_trips(parsed(f"T.evaluate(T.{name}(1))\nT.evaluate(T.{name}(n))"))


@pytest.mark.parametrize(
    "kind",
    [
        'T.handle("float32")',
        'T.handle("float32", "shared")',
        'T.Ptr("float32")',
        "T.Ptr[T.float32]",
        "T.ptr",
    ],
)
def test_pointers_are_handles(kind: str) -> None:
    func = parsed("T.evaluate(p)", f"p: {kind}")
    assert func.params[0].dtype is ir.dtype_of("handle")
    round_trips(func)


@pytest.mark.parametrize(
    "kind",
    ['T.Buffer((4, 4), "float32", axis_separators=[1])', 'T.Buffer(("m", 4), strides=("s", 1))',
     'T.Buffer((4,), "int8", None, None, 0, "shared", 64, 4)', "T.Buffer[(4, 4), 'float16']",
     'T.Buffer((), "bool")', "T.Buffer(4)"],
)  # fmt: skip
def test_buffer_parameters(kind: str) -> None:
    round_trips(parsed("pass", f"A: {kind}"))


@pytest.mark.parametrize("name", [*REPLACED, *OTHER_TYPES])
def test_other_names_say_what_to_write(name: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parsed(f"T.evaluate(T.{name}(1))")
    (problem,) = caught.value.diagnostics
    assert problem.code == "BW115"
    assert problem.help
    assert not hasattr(T, name)
