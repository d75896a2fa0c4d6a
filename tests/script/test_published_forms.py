"""Forms that published tensor programs are printed in: each parses, round-trips, and means the
same to the interpreter, to native code and to a schedule."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.analysis.canonical.memory import memory_roots, plain_memory
from blockwright.ir import PrimFunc, assert_structural_equal
from blockwright.script.ir import from_source
from blockwright.support import ScheduleError, ScriptError, ValidationError

VECTORS = 'A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")'


def program(body: str, params: str = VECTORS, options: str = "") -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    func = from_source(f"@T.prim_func({options})\ndef main({params}):\n{lines}\n")
    assert isinstance(func, PrimFunc)
    assert_structural_equal(from_source(func.script()), func)
    bw.validate(func)
    return func


def run(func: PrimFunc, *arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays afterwards, which the interpreter and native code agree on."""
    slow, fast = [a.copy() for a in arrays], list(arrays)
    bw.interpret(func, *slow)
    bw.build(func)["main"](*fast)
    for a, b in zip(slow, fast, strict=True):
        np.testing.assert_array_equal(a, b)
    return fast


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


# ---------------------------------------------------------------------------- strides named by text
def test_strides_are_named_by_strings() -> None:
    func = program(
        """
n = T.int32()
A = T.match_buffer(a, (n, 4), strides=("s0", "s1"), buffer_type="default")
C = T.match_buffer(c, (n, 4), strides=["s0", 1])
for i in range(n):
    with T.block("C"):
        vi = T.axis.spatial(n, i)
        T.reads(A[vi, 0:4])
        T.writes(C[vi, 0:4])
        D = T.match_buffer(A[vi, 0:4], (4,), strides=("s0",), offset_factor=1)
        for j in range(4):
            C[vi, j] = D[j] + 1.0
""",
        "a: T.handle, c: T.handle",
    )
    source = ramp(3, 24)[:, ::6]
    _, c = run(func, source, np.zeros((3, 8), "float32")[:, :4])
    np.testing.assert_array_equal(c, source + 1)
    a, b = func.buffers
    assert a.strides[0] is not b.strides[0]  # "s0" of another buffer is another stride


def test_new_memory_has_no_stride_to_name() -> None:
    with pytest.raises(ScriptError, match="'s0' names no size"):
        program('C = T.alloc_buffer((4,), strides=("s0",))')


# ------------------------------------------------------------------------------- calls and types
def test_calls_without_a_result() -> None:
    func = program("""
T.ptx_commit_group(dtype="")
T.ptx_wait_group(0, dtype="")
T.tvm_storage_sync("shared", dtype="")
T.call_extern("f", A.data, dtype="")
T.call_extern("void", "f", A.data)
T.call_packed("f", A.data, dtype="void")
T.call_intrin("void", "tir.tvm_storage_sync", "shared")
""")
    plain = program("""
T.ptx_commit_group()
T.ptx_wait_group(0)
T.tvm_storage_sync("shared")
T.call_extern("f", A.data)
T.call_extern("f", A.data)
T.call_packed("f", A.data)
T.tvm_storage_sync("shared")
""")
    assert_structural_equal(func, plain)


@pytest.mark.parametrize(
    ("name", "known"), [("e4m3_float8", "float8_e4m3fn"), ("e5m2_float8x4", "float8_e5m2x4")]
)
def test_older_names_of_eight_bit_floats(name: str, known: str) -> None:
    assert ir.dtype_of(name) is ir.dtype_of(known)
    program(f'C = T.alloc_buffer((4,), "{name}")\nC[0] = T.{name}(0)')


# ------------------------------------------------------------------------------- named pointers
POINTERS = [
    "p: T.handle = C.data",
    'p: T.handle("float32") = C.data',
    'p: T.handle("float32", "global") = T.address_of(C[0])',
    'p: T.let[T.handle("float32", "global")] = C.data',
    "p = C.data",
    'q: T.handle("float32") = C.data\nE = T.decl_buffer((4, 2), data=q)\np = E.data',
    "p = T.handle()\nT.let(p, C.data)",
    "p = T.LetStmt(C.data)",
    'p = T.LetStmt(C.data, T.handle("float32"))',
]
SHARED = """
D = T.decl_buffer((8,), "float32", data=p)
for i in range(8):
    with T.block("X"):
        vi = T.axis.spatial(8, i)
        C[vi] = A[vi] + 1.0
for i in range(8):
    with T.block("Y"):
        vi = T.axis.spatial(8, i)
        B[vi] = D[7 - vi] * 2.0
"""
EIGHTS = ", ".join(f'{name}: T.Buffer((8,), "float32")' for name in "ABC")


@pytest.mark.parametrize("text", POINTERS)
def test_a_buffer_on_a_named_pointer_is_a_view(text: str) -> None:
    func = program(text + SHARED, EIGHTS)
    assert not ir.collect(func.body, ir.LetStmt)  # the address is written out
    sch = bw.Schedule(func)
    assert not ir.collect(sch.func.body, ir.DeclBuffer)  # which folds the view
    first, second = (sch.get_loops(name)[0] for name in "XY")
    with pytest.raises(ScheduleError, match="in other iterations of loop"):
        sch.merge(first, second)


def test_a_named_pointer_in_native_code() -> None:
    func = program(POINTERS[1] + SHARED, EIGHTS)
    _, b, _ = run(func, ramp(8), np.zeros(8, "float32"), np.zeros(8, "float32"))
    np.testing.assert_array_equal(b, (ramp(8)[::-1] + 1) * 2)


def test_an_index_is_read_where_the_pointer_is_named() -> None:
    func = program("""
p: T.handle("float32") = T.address_of(B[T.Cast("int32", A[1])])
A[1] = 7.0
D = T.decl_buffer((4,), "float32", data=p)
D[0] = 3.0
""")
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    assert np.flatnonzero(b).tolist() == [1]


@pytest.mark.parametrize("end", ["", "\nT.call_extern('g', p)"])
def test_what_a_call_reaches_by_a_named_pointer(end: str) -> None:
    """The pointer comes from a call that was given an address of A."""
    func = program(
        'o: T.handle = T.call_extern("handle", "h", A.data)\n'
        'p: T.handle("float32") = T.call_extern("handle", "f", o)\n'
        'D = T.decl_buffer((16,), "float32", data=p)\n'
        'for i in range(16):\n    with T.block("X"):\n        vi = T.axis.spatial(16, i)\n'
        "        D[vi] = 1.0" + end.replace("\n", "\n        ")
    )
    state = bw.Schedule(func)
    block = next(b for b in ir.blocks(state.func.body) if b.name == "X")
    assert "A" in [r.buffer.name for r in block.writes]
    assert memory_roots(func)[ir.collect(func.body, ir.DeclBuffer)[0].buffer] is func.buffers[0]


def test_pointers_from_a_struct_are_memory_of_their_own() -> None:
    func = program(
        """
a: T.handle("float32") = T.call_extern("handle", "get", args, 0)
A = T.decl_buffer((4,), data=a)
b: T.handle("float32") = T.call_extern("handle", "get", args, 1)
B = T.decl_buffer((4,), data=b)
D = T.decl_buffer((2,), data=b)
B[0] = A[0] + D[1]
""",
        "args: T.handle",
    )
    views = [node.buffer for node in ir.collect(func.body, ir.DeclBuffer)]
    assert memory_roots(func) == {views[2]: views[1]}
    with pytest.raises(ScriptError, match="an address, not a number"):
        program('p: T.handle("float32") = 3\nT.call_extern("f", p)')


def test_a_pointer_that_is_named_in_the_ir() -> None:
    """A program made without the parser keeps its name, and the view its memory."""
    func = program("D = T.decl_buffer((16,), data=A.data)\nD[0] = B[0]")
    view = func.body
    assert isinstance(view, ir.DeclBuffer)
    name = ir.Var("p", ir.dtype_of("handle"))
    named = func.replace(body=ir.LetStmt(name, view.source, view.replace(source=name)))
    bw.validate(named)
    assert memory_roots(named) == {view.buffer: func.buffers[0]}
    assert_structural_equal(plain_memory(named), plain_memory(func))
    assert bw.verify(func, named).verdict == "proved"
    assert_structural_equal(from_source(named.script()), func)


@pytest.mark.parametrize("choice", ["T.Select", "T.if_then_else"])
def test_a_view_has_one_memory(choice: str) -> None:
    with pytest.raises(ValidationError, match="on the memory of A or B") as caught:
        program(
            f"p = {choice}(A[0] > 1, A.data, B.data)\nD = T.decl_buffer((4,), data=p)\nD[0]=1.0"
        )
    assert caught.value.code == "BW256"
    program(
        f"p = {choice}(A[0] > 1, A.data, T.address_of(A[4]))\n"
        "D = T.decl_buffer((4,), data=p)\nD[0] = 1.0"
    )


# ------------------------------------------------------------------------- loops and their indices
@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        ("range(0, 16, 4)", range(0, 16, 4)),
        ("range(15, 2, -3)", range(15, 2, -3)),
        ("range(9, 3, 2)", range(9, 3, 2)),
        ("T.serial(2, 15, step=3)", range(2, 15, 3)),
        ("T.serial(7, step=T.int32(3))", range(0, 7, 3)),
        ("T.parallel(3, 16, step=5)", range(3, 16, 5)),
        ("T.vectorized(0, 16, step=2)", range(0, 16, 2)),
        ("T.unroll(5, 16, step=4)", range(5, 16, 4)),
        ("range(n + 9, n, -2)", range(14, 5, -2)),
    ],
)
def test_loops_with_a_step(loop: str, wanted: range) -> None:
    func = program(f"for i in {loop}:\n    B[i] = A[i] + 1.0", VECTORS + ", n: T.int32")
    a, fast, slow = ramp(16), np.zeros(16, "float32"), np.zeros(16, "float32")
    bw.interpret(func, a, slow, 5)
    bw.build(func)["main"](a, fast, 5)
    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(fast, [k + 1 if k in wanted else 0 for k in range(16)])


def test_a_block_in_a_loop_with_a_step() -> None:
    text = 'for i in {}:\n    with T.block("B"):\n        vi = T.axis.spatial(16, {})\n        '
    func = program(text.format("range(2, 16, 4)", "i") + "B[vi] = A[vi] + 1.0")
    assert_structural_equal(
        func, program(text.format("range(4)", "2 + i * 4") + "B[vi] = A[vi] + 1.0")
    )
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    assert np.flatnonzero(b).tolist() == [2, 6, 10, 14]


@pytest.mark.parametrize("loop", ["range(0, 16, n)", "T.serial(16, step=0)", "range(0, 16, 1.5)"])
def test_a_step_is_a_constant(loop: str) -> None:
    with pytest.raises(ScriptError, match="a constant other than 0") as caught:
        program(f"for i in {loop}:\n    B[i] = A[i]", VECTORS + ", n: T.int32")
    assert caught.value.code == "BW106"


UNCHECKED = "check_well_formed=False"


def test_a_forgotten_binding_is_found() -> None:
    with pytest.raises(ValidationError, match="uses the loop variable k") as caught:
        program("""
for i, k in T.grid(4, 4):
    with T.block("B"):
        vi = T.axis.spatial(4, i)
        B[vi] = A[k]
""")
    assert caught.value.code == "BW212"


def test_loop_variables_in_a_block_with_iterators() -> None:
    text = """
for i, k in T.grid(4, 4):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.where(i < 3)
        T.reads(A[i * 4 + k])
        T.writes(B[i])
        with T.init():
            B[i] = 0.0
        B[vi] = B[i] + A[vi * 4 + k]
"""
    func = program(text, options=UNCHECKED)
    plain = program("""
for i, k in T.grid(4, 4):
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        T.where(i < 3)
        T.reads(A[vi * 4 + vk])
        T.writes(B[vi])
        with T.init():
            B[vi] = 0.0
        B[vi] = B[vi] + A[vi * 4 + vk]
""")
    assert_structural_equal(func, plain)
    sch = bw.Schedule(func)
    sch.decompose_reduction("B", sch.get_loops("B")[0])
    _, b = run(sch.func, ramp(16), np.zeros(16, "float32"))
    assert b[:4].tolist() == [6, 22, 38, 0]


@pytest.mark.parametrize("block", ['"B"', '[4], "B"'])
def test_a_loop_variable_that_no_iterator_is_bound_to(block: str) -> None:
    inner = 'for i in range(4):\n        with T.block("B"):\n            vi = T.axis.spatial(4, i)'
    if block != '"B"':
        inner = f"if True:\n        with T.block({block}) as [vi]:"
    text = f"for k in range(4):\n    {inner}\n            B[vi] = B[vi] + A[vi * 4 + k]"
    func = program(text, options=UNCHECKED)
    kinds = [it.iter_type.name for b in ir.blocks(func.body) for it in b.iter_vars]
    assert kinds == ["SPATIAL", "OPAQUE"]
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    assert b[:4].tolist() == [6, 22, 38, 54]
    sch = bw.Schedule(func)
    with pytest.raises(ScheduleError):
        sch.parallel(sch.get_loops("B")[0])


def test_a_conditional_expression_is_lazy() -> None:
    func = program("""
for i in range(16):
    with T.block("B"):
        vi = T.axis.spatial(16, i)
        B[vi] = A[vi - 8] if vi >= 8 else 0.5
""")
    plain = program("""
for i in range(16):
    with T.block("B"):
        vi = T.axis.spatial(16, i)
        B[vi] = T.if_then_else(vi >= 8, A[vi - 8], 0.5)
""")
    assert_structural_equal(func, plain)
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    assert b.tolist() == [0.5] * 8 + list(range(8))


def test_a_thread_axis_whose_extent_the_attribute_states() -> None:
    axis = 'T.iter_var(tx, None, "ThreadIndex", "threadIdx.x")'
    func = program(f'tx = T.int32()\nT.attr({axis}, "thread_extent", 16)\nB[tx] = A[tx]')
    plain = program('tx = T.launch_thread("threadIdx.x", 16)\nB[tx] = A[tx]')
    assert_structural_equal(func, plain)
    with pytest.raises(ScriptError, match="the axis tx has no domain"):
        program(f'tx = T.int32()\nT.attr({axis}, "pragma", 1)\nB[tx] = A[tx]')


# ------------------------------------------------------------------------ arguments of a schedule
def test_arguments_of_the_classic_schedule() -> None:
    text = (
        'for i in range(16):\n    with T.block("B"):\n        v = T.axis.spatial(16, i)\n        '
    )
    func = program(text + "B[v] = A[v]")
    for mask in ("all", "none", 1, 0):
        sch = bw.Schedule(func, seed=1, debug_mask=mask, error_render_level="fast")
        sch.split(sch.get_loops("B")[0], [4, None])
    wrong = ({"debug_mask": "some"}, {"error_render_level": "loud"}, {"enable_check": False})
    for options in wrong:
        with pytest.raises(ScheduleError) as caught:
            bw.Schedule(func, **options)
        assert caught.value.code == "BW304"


# --------------------------------------------------------------------------- expressions by name
@pytest.mark.parametrize(
    ("kind", "power"), [("float32", "int32"), ("float64", "int64"), ("float16", "int8")]
)
def test_ldexp_rounds_once(kind: str, power: str) -> None:
    func = program(
        'for i in range(n):\n    with T.block("Y"):\n        vi = T.axis.spatial(n, i)\n'
        "        Y[vi] = T.ldexp(X[vi], E[vi])",
        f'X: T.Buffer(("n",), "{kind}"), E: T.Buffer(("n",), "{power}"), '
        f'Y: T.Buffer(("n",), "{kind}")',
    )
    rng, whole = np.random.default_rng(0), np.iinfo(power)
    bits = rng.integers(0, 1 << 62, 600).astype(f"uint{np.dtype(kind).itemsize * 8}").view(kind)
    x = np.concatenate([[0.0, -0.0, np.inf, np.nan, 1.0, 3.0], bits]).astype(kind)
    e = rng.integers(max(whole.min, -2300), min(whole.max, 2300), x.size).astype(power)
    e[::2] = np.clip(e[::2] // 8, -128, 127)
    e[-2:] = whole.min, whole.max
    with np.errstate(all="ignore"):
        want = np.ldexp(x, np.clip(e, -5000, 5000).astype("int32"))
    _, _, y = run(func, x, e, np.zeros_like(x))
    np.testing.assert_array_equal(y, want)
    np.testing.assert_array_equal(np.signbit(y[:2]), [False, True])


def test_an_offset_into_several_dimensions() -> None:
    func = program(
        'D = T.decl_buffer((4,), data=A.access_ptr("r", offset=6))\n'
        "for i in range(4):\n    B[i] = D[i]\n"
        'for i in range(2):\n    T.call_extern("f", A.access_ptr("w", offset=i * 8))',
        'A: T.Buffer((4, 4), "float32"), B: T.Buffer((16,), "float32")',
    )
    plain = program(
        "D = T.decl_buffer((4,), data=T.address_of(A[1, 2]))\n"
        "for i in range(4):\n    B[i] = D[i]\n"
        'for i in range(2):\n    T.call_extern("f", T.address_of(A[i * 8 // 4, i * 8 % 4]))',
        'A: T.Buffer((4, 4), "float32"), B: T.Buffer((16,), "float32")',
    )
    assert_structural_equal(func, plain)
    with pytest.raises(ScriptError, match="which has strides, is ambiguous"):
        program(
            "C = T.decl_buffer((4,), data=A.data, strides=(4,))\n"
            'T.call_extern("f", C.access_ptr("r", offset=1))'
        )


def test_a_view_that_depends_on_a_loop_stays_the_same_buffer_in_a_block() -> None:
    func = program("""
for i in range(4):
    line = T.decl_buffer((4,), data=A.data, elem_offset=i * 4)
    for j in range(0, 4, 1):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi * 4 + vj] = line[vj]
""")
    assert len({b for b in ir.collect(func.body, ir.Buffer) if b.name == "line"}) == 1
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, ramp(16))


def test_a_reduction_over_threads_writes_its_result() -> None:
    """As the classic lowering of cross-thread reductions prints it."""
    func = program(
        """
for i in T.serial(4):
    with T.block("row"):
        vi0 = T.axis.spatial(4, i)
        T.reads([A[i, 0:4]])
        T.writes([B[i]])
        sum0 = T.alloc_buffer([1], dtype="float32", strides=[1], scope="local")
        for k in T.thread_binding(0, 4, thread="threadIdx.x"):
            with T.block("reduce"):
                vi, vk = T.axis.remap("SR", [i, k])
                T.reads([A[vi, vk]])
                T.writes([sum0[0]])
                T.attr(T.comm_reducer(lambda x, y: x + y, [T.float32(0)]), "reduce_scope",
                       T.reinterpret(T.uint64(0), dtype="handle"))
                T.evaluate(T.tvm_thread_allreduce(T.uint32(1), A[vi, vk], True, sum0[0], k,
                                                  dtype="handle"))
            with T.block("write_back"):
                vi = T.axis.spatial(4, i)
                T.where(k == 0)
                B[vi] = sum0[0]
""",
        'A: T.Buffer((4, 4), "float32"), B: T.Buffer((4,), "float32")',
        UNCHECKED,
    )
    call = next(c for c in ir.collect(func.body, ir.Call) if c.op == "tvm_thread_allreduce")
    reduce = next(b for b in ir.blocks(func.body) if b.name == "reduce")
    assert call.args[-1] is reduce.iter_vars[1].var


# ---------------------------------------------------------------------- attributes and conditions
@pytest.mark.parametrize(
    ("text", "wanted"),
    [("True", True), ("T.bool(True)", True), ("T.bool(False)", False), ("1", True), ("0", False)],
)
def test_flags_of_functions_are_truth_values(text: str, wanted: bool) -> None:
    body = f'T.func_attr({{"tir.noalias": {text}}})\nfor i in range(16):\n    B[i] = A[i] + 1.0'
    func = program(body)
    assert func.attrs["tir.noalias"] is wanted
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, ramp(16) + 1)


def test_flags_of_functions_are_no_texts() -> None:
    with pytest.raises(ScriptError, match="neither True nor False"):
        program('T.func_attr({"tir.noalias": "yes"})\nB[0] = A[0]')
    func = program("B[0] = A[0]").with_attrs(**{"tir.noalias": ir.const(2, "int32")})
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.build(func)
    assert caught.value.code == "BW252"


def test_classic_names_and_conditions_of_allocations() -> None:
    func = program("""
C = T.allocate([16], "float32", "global", condition=T.bool(True))
D = T.Buffer((16,), "float32", data=C)
for i in range(16):
    D[i] = T.call_intrin("float32", "tir.fabs", A[i])
for i in range(16):
    B[i] = D[i]
""")
    _, b = run(func, -ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, ramp(16))
