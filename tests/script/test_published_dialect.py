"""Spellings of published tensor programs: each parses, round-trips, and means what it meant."""

from __future__ import annotations

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir import PrimFunc, assert_structural_equal
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.support import BuildError, ScheduleError, ScriptError

VECTORS = 'A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")'
CUBES = 'A: T.Buffer((2, 3, 4), "float32"), B: T.Buffer((2, 3, 4), "float32")'


def program(body: str, params: str = VECTORS) -> PrimFunc:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").split("\n"))
    func = from_source(f"@T.prim_func\ndef main({params}):\n{lines}\n")
    assert isinstance(func, PrimFunc)
    assert_structural_equal(from_source(func.script()), func)
    bw.validate(func)
    return func


def run(func: PrimFunc, *arrays: np.ndarray) -> list[np.ndarray]:
    """The arrays afterwards, which the interpreter and native code agree on."""
    slow, fast = [a.copy() for a in arrays], [a.copy() for a in arrays]
    bw.interpret(func, *slow)
    bw.build(func)["main"](*fast)
    for a, b in zip(slow, fast, strict=True):
        np.testing.assert_array_equal(a, b)
    return fast


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_a_choice_may_state_its_type() -> None:
    func = program("""
for i in range(16):
    with T.block("B"):
        vi = T.axis.spatial(16, i)
        B[vi] = T.if_then_else(vi < 8, A[vi], 0, dtype="float32")
""")
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, np.where(np.arange(16) < 8, ramp(16), 0))
    with pytest.raises(ScriptError, match="declares the type int32 for values of float32"):
        program('B[0] = T.if_then_else(A[0] > 1, A[0], A[1], dtype="int32")')


def test_a_tuple_of_meta_variables() -> None:
    func = program("""
for i in range(8):
    a, b = T.meta_var((i, i + 8))
    first, *rest = T.meta_var((i, b, a))
    B[a] = A[b]
    B[rest[0]] = A[first]
""")
    assert not ir.collect(func.body, ir.LetStmt)
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, np.roll(ramp(16), 8))


@pytest.mark.parametrize(
    ("target", "axes", "names"),
    [
        ("*i,", "i", ["i_0", "i_1", "i_2"]),
        ("i", "i", ["i_0", "i_1", "i_2"]),
        ("i, *rest", "[i, *rest]", ["i", "rest_0", "rest_1"]),
        ("*rest, k", "[*rest, k]", ["rest_0", "rest_1", "k"]),
    ],
)
def test_starred_loop_variables(target: str, axes: str, names: list[str]) -> None:
    func = program(
        f"""
for {target} in T.grid(2, 3, 4):
    with T.block("B"):
        v = T.axis.remap("SSS", {axes})
        B[(*v,)] = A[(*v,)] + 1.0
""",
        CUBES,
    )
    assert [loop.loop_var.name for loop in ir.collect(func.body, ir.For)] == names
    _, b = run(func, ramp(2, 3, 4), np.zeros((2, 3, 4), "float32"))
    np.testing.assert_array_equal(b, ramp(2, 3, 4) + 1)


def test_as_many_loop_variables_as_loops() -> None:
    for target in ("i, j", "i, *j, k, l, m", "*i, *j"):
        with pytest.raises(ScriptError, match="3 loops"):
            program(f"for {target} in T.grid(2, 3, 4):\n    B[0] = 1.0")


def test_a_block_without_iterators_sees_the_loops_around_it() -> None:
    func = program("""
for i, j in T.grid(4, 4):
    with T.block("B"):
        T.reads(A[i * 4 + j])
        T.writes(B[i * 4 + j])
        B[i * 4 + j] = A[i * 4 + j] + 1.0
""")
    block = next(b for b in ir.blocks(func.body) if b.name == "B")
    assert [it.iter_type for it in block.iter_vars] == [ir.IterType.OPAQUE] * 2
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, ramp(16) + 1)


def test_its_loops_may_depend_on_each_other_and_blocks_nest() -> None:
    func = program("""
for i in range(16):
    with T.block("outer"):
        for j in range(i, 16):
            with T.block("inner"):
                B[j] = A[i]
""")
    outer, inner = [b for b in ir.blocks(func.body) if b.name != "root"]
    assert [ir.const_int(it.dom.extent) for it in outer.iter_vars] == [16]
    assert ir.uses_var(inner.iter_vars[0].dom, {outer.iter_vars[0].var})
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    np.testing.assert_array_equal(b, ramp(16))


@pytest.mark.parametrize("size", [1, 5])
def test_an_auto_buffer_of_one_element_serves_every_index(size: int) -> None:
    func = from_source("""
@T.prim_func
def main(a: T.handle, c: T.handle):
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, 4), "float32", buffer_type="auto")
    C = T.match_buffer(c, (m, 4), "float32", buffer_type="default")
    for i, j in T.grid(m, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = A[vi, vj] + 1.0
""")
    assert isinstance(func, PrimFunc)
    _, c = run(func, ramp(size, 4), np.zeros((5, 4), "float32"))
    np.testing.assert_array_equal(c, np.broadcast_to(ramp(size, 4) + 1, (5, 4)))


def test_an_auto_buffer_of_known_shape() -> None:
    func = program(
        """
for i, j in T.grid(4, 8):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj]
for i in range(4):
    B[i, 0:4] = A[i, 0:4] + 1.0
""",
        'A: T.Buffer((4, 1), "float32", buffer_type="auto"), '
        'B: T.Buffer((4, 8), "float32", buffer_type="auto")',
    )
    _, b = run(func, ramp(4, 1), np.zeros((4, 8), "float32"))
    np.testing.assert_array_equal(b, ramp(4, 1) + (np.arange(8) < 4))


def test_result_types_of_calls_by_keyword() -> None:
    func = program("""
for i in range(16):
    B[i] = T.call_intrin("tir.exp", A[i], dtype="float32") + T.exp(A[i], dtype="float32")
T.evaluate(T.call_extern("f", A.data, dtype="int32"))
T.evaluate(T.call_packed("g", 1, dtype="int32"))
T.evaluate(T.call_extern("f", T.tvm_access_ptr(T.type_annotation(dtype="float32"), A.data, 0, 16,
                                               1, dtype="handle"), dtype="int32"))
""")
    names = [(c.op, str(c.dtype)) for c in ir.collect(func.body, ir.Call)]
    assert names.count(("exp", "float32")) == 2
    assert ("call_extern", "int32") in names
    with pytest.raises(ScriptError, match="an address, not int32"):
        program('T.evaluate(T.tvm_access_ptr("float32", A.data, 0, 16, 1, dtype="int32"))')
    with pytest.raises(ScriptError, match="a result type, a name"):
        program("T.evaluate(T.call_intrin(3))")


def test_a_matched_buffer_keeps_its_name_beside_a_new_variable() -> None:
    func = from_source("""
@T.prim_func
def main(a: T.handle):
    A = T.match_buffer(a, (16,), "float32", elem_offset=T.int32(), offset_factor=4)
    A[0] = 1.0
""")
    assert isinstance(func, PrimFunc)
    assert [b.name for b in func.buffers] == ["A"]


def test_vectors_loaded_and_stored_from_their_first_element() -> None:
    func = program("""
B.vstore([0], A.vload([4], "float32x4"))
B.vstore([8], A[0:4] * T.Broadcast(T.float32(2), 4))
B.vstore(T.Ramp(4, 1, 2), A.vload(T.Ramp(0, 2, 2), dtype="float32x2"))
B.vstore([15], A.vload([15], "float32"))
""")
    _, b = run(func, ramp(16), np.zeros(16, "float32"))
    assert b.tolist() == [4, 5, 6, 7, 0, 2, 0, 0, 0, 2, 4, 6, 0, 0, 0, 15]
    for load in ('A.vload([0], "int32x4")', 'A.vload([T.Ramp(0, 1, 2)], "float32x4")'):
        with pytest.raises(ScriptError, match="BW107"):
            program(f"B.vstore([0], {load})")


def test_a_block_that_reads_between_two_loaded_bounds() -> None:
    func = from_source("""
@T.prim_func
def main(a: T.handle, b: T.handle, starts: T.handle):
    m, n = T.int32(), T.int32()
    A = T.match_buffer(a, [m], "float32")
    B = T.match_buffer(b, [n], "float32")
    S = T.match_buffer(starts, [n + 1], "int32")
    for i in T.serial(n):
        with T.block("segment"):
            vi = T.axis.spatial(n, i)
            T.reads(S[vi : vi + 2], B[vi], A[S[vi] : S[vi + 1]])
            T.writes(B[vi])
            for j in T.serial(S[vi], S[vi + 1]):
                with T.block("sum"):
                    vj = T.axis.reduce(m, j)
                    T.reads(B[vi], A[vj])
                    T.writes(B[vi])
                    B[vi] = B[vi] + A[vj]
""")
    assert isinstance(func, PrimFunc)
    bw.validate(func)
    starts = np.array([0, 4, 4, 9], "int32")
    _, b, _ = run(func, ramp(12), np.ones(3, "float32"), starts)
    assert b.tolist() == [1 + 6, 1, 1 + 30]


@pytest.mark.parametrize("types", ["", "T.uint32(1), "])
def test_llvm_intrinsics_by_their_identifier(types: str) -> None:
    func = from_source(f"""
@T.prim_func
def main(A: T.Buffer((16,), "uint8"), B: T.Buffer((16,), "uint8")):
    for i in range(16):
        with T.block("B"):
            vi = T.axis.remap("S", [i])
            B[vi] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id("llvm.ctpop.i8"), {types}A[vi], dtype="uint8")
""")
    a, b = np.arange(16, dtype="uint8"), np.zeros(16, "uint8")
    bw.build(func)["main"](a, b)
    assert b.tolist() == [int(x).bit_count() for x in a]


def test_the_newer_annotation_of_named_values() -> None:
    func = program("j: T.let[T.int32] = 3\nB[j] = A[j]")
    assert run(func, ramp(16), np.zeros(16, "float32"))[1][3] == 3


class TestTargets:
    """`T.target` in a program states what it was written for."""

    @pytest.mark.parametrize("text", ['"llvm -mcpu=skylake-avx512"', '{"kind": "llvm"}', '"c"'])
    def test_a_processor(self, text: str) -> None:
        func = program(f'T.func_attr({{"target": T.target({text})}})\nB[0] = A[0] + 1.0')
        _, b = run(func, ramp(16), np.zeros(16, "float32"))
        assert b[0] == 1

    def test_another_device_is_refused_when_building(self) -> None:
        func = program(
            'T.func_attr({"target": T.target({"kind": "cuda", "arch": "sm_80"})})\nB[0] = A[0]'
        )
        with pytest.raises(BuildError, match="is cuda") as caught:
            bw.build(func)
        assert caught.value.code == "BW602"

    def test_host_and_attribute_statement(self) -> None:
        program('T.func_attr({"target": T.target("llvm", host="llvm")})\nB[0] = A[0]')
        program('with T.attr(T.target("llvm"), "target", 0):\n    B[0] = A[0]')

    def test_no_target(self) -> None:
        for text in ("3", '""', '{"arch": "sm_80"}'):
            with pytest.raises(ScriptError, match="a target is a name"):
                program(f'T.func_attr({{"target": T.target({text})}})\nB[0] = A[0]')


@T.prim_func
def through(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32")) -> None:
    B = T.alloc_buffer((4, 8))
    for i, j in T.grid(4, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(4, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * T.float32(2)


class TestScheduleArguments:
    """Buffers and maps of any number of indices, as the classic schedule takes them."""

    def check(self, sch: bw.Schedule) -> None:
        arrays = ramp(4, 8), np.zeros((4, 8), "float32")
        bw.interpret(sch.func, *arrays)
        np.testing.assert_array_equal(arrays[1], (ramp(4, 8) + 1) * 2)
        assert_structural_equal(sch.trace.apply_to(through), sch.func)

    @pytest.mark.parametrize("which", ["B", ("write", 0), "buffer"])
    def test_transform_layout(self, which: object) -> None:
        sch = bw.Schedule(through)
        block = sch.get_block("B")
        buffer = sch.get(block).writes[0].buffer if which == "buffer" else which
        sch.transform_layout(block, buffer, lambda *i: (i[1] // 4, *i[:-1], i[1] % 4))
        layout = sch.get(block).writes[0].buffer
        assert [ir.const_int(n) for n in layout.shape] == [2, 4, 4]
        self.check(sch)

    def test_padding_and_blocks(self) -> None:
        sch = bw.Schedule(through)
        sch.transform_layout(
            "B", "B", lambda i, *j: (i, j[0] // 3, j[0] % 3), pad_value=lambda *i: T.float32(0)
        )
        sch.transform_block_layout("C", lambda *v: (v[0] * 8 + v[1],))
        self.check(sch)

    def test_caches(self) -> None:
        sch = bw.Schedule(through)
        block = sch.get_block("C")
        read, write = (r[0].buffer for r in (sch.get(block).reads, sch.get(block).writes))
        sch.cache_read(block, read, "global")
        sch.cache_write(block, write, "global")
        sch.reindex_cache_read("B", 0, "global", lambda *v: v[::-1])
        self.check(sch)

    def test_a_buffer_of_another_block(self) -> None:
        sch = bw.Schedule(through)
        buffer = sch.get(sch.get_block("C")).writes[0].buffer
        with pytest.raises(ScheduleError) as caught:
            sch.cache_read("B", buffer, "global")
        assert caught.value.code == "BW320"

    def test_a_map_names_its_indices(self) -> None:
        sch = bw.Schedule(through)
        with pytest.raises(ScheduleError, match="one parameter per index") as caught:
            sch.transform_layout("B", "B", lambda **i: (i["i"], i["j"]))
        assert caught.value.code == "BW304"


def _element_of(buffer: ir.Buffer, row: ir.Expr, column: int) -> ir.Expr:
    """As the index functions of published matrix intrinsics compute with the offset."""
    return buffer.elem_offset // 8 + row * 8 + column + buffer.elem_offset % 8


def _copy_row(target: ir.Buffer, source: ir.Buffer, row: ir.Expr) -> None:
    target.vstore([row * 8], source.vload([row * 8], "float32") + 1.0)
    T.evaluate(T.call_extern("f", target.data, source.access_ptr("r", offset=row), dtype="int32"))


def test_plain_python_helpers_compute_with_buffers() -> None:
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
        for i in range(8):
            B[_element_of(B, i, 1)] = A[_element_of(A, i, 0)]
            _copy_row(B, A, i)

    @T.prim_func
    def want(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")) -> None:
        for i in range(8):
            B[i * 8 + 1] = A[i * 8]
            B[i * 8] = A[i * 8] + T.float32(1)
            T.evaluate(T.call_extern("f", B.data, A.access_ptr("r", offset=i), dtype="int32"))

    assert ir.structural_equal(main.with_attrs(global_symbol="want"), want)


def test_the_offset_of_a_buffer_is_an_expression() -> None:
    plain = ir.Buffer("A", ir.dtype_of("float32"), (ir.const(8, "int32"),))
    assert plain.offset is None
    assert repr(plain.elem_offset) == "0"
    start = ir.Var("start", ir.dtype_of("int64"))
    assert plain.replace(offset=start).elem_offset is start
