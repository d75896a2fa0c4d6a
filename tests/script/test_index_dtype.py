"""`index_dtype` of a function: the type of Python integers in index positions, when a program is
read and when it is printed."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

import blockwright as bw
from blockwright import ir
from blockwright.ir.printer import script
from blockwright.script import ir as I
from blockwright.script import relax as R
from blockwright.script import tir as T
from blockwright.script.ir import from_source
from blockwright.script.ir_builder import IRBuilder
from blockwright.support import ScriptError

SIZE = 6
# Statements in which § stands before every integer in an index position.
INDEX_POSITIONS = {
    "alloc_buffer": "W = T.alloc_buffer((§4, §5), 'float32')",
    "strides and offset": "W = T.alloc_buffer((§4, §5), strides=(§8, §1), elem_offset=§2)",
    "allocate": "W = T.allocate((§4,), 'float32')\nW[0] = 1.0",
    "table": "W = T.allocate_const([1.0, 2.0], 'float32', (§2,))",
    "decl_buffer": "W = T.decl_buffer((§4,), 'float32', data=A.data)",
    "Buffer": "W = T.Buffer((§4,), 'float32', data=A.data)",
    "match_buffer": "with T.block('b'):\n    W = T.match_buffer(A[0:4, 0:1], (§4, §1))",
    "range": "for i in range(§8):\n    A[0, 0] = 1.0",
    "range from": "for i in range(§2, §8):\n    A[0, 0] = 1.0",
    "serial": "for i in T.serial(§8):\n    A[0, 0] = 1.0",
    "grid": "for i, j in T.grid(§2, §3):\n    A[0, 0] = 1.0",
    "parallel": "for i in T.parallel(§8):\n    A[i, 0] = 1.0",
    "vectorized": "for i in T.vectorized(§8):\n    A[i, 0] = 1.0",
    "unroll": "for i in T.unroll(§1, §8):\n    A[i, 0] = 1.0",
    "thread_binding": "for t in T.thread_binding(§8, thread='threadIdx.x'):\n    A[t, 0] = 1.0",
    "launch_thread": "t = T.launch_thread('threadIdx.x', §8)\nA[t, 0] = 1.0",
    "env_thread": "t = T.env_thread('threadIdx.x', KIND)\n"
    "with T.launch_thread(t, §8):\n    A[t, 0] = 1.0",
    "axis": "with T.block('b'):\n    v = T.axis.spatial(§8, §3)\n    A[v, 0] = 1.0",
    "axis from": "with T.block('b'):\n    v = T.axis.opaque((§2, §8), §3)\n    A[v, 0] = 1.0",
    "bind": "with T.block([§8, T.reduce_axis(§0, §4)], 'b') as [v, k]:\n"
    "    T.bind(v, 3)\n    T.bind(k, 0)\n    A[v, 0] = 1.0",
    "own loops": "with T.block([§8, T.range_axis(§1, §4)], 'b') as [v, w]:\n    A[v, w] = 1.0",
    "iter_var": "t = T.int64()\nT.attr(T.iter_var(t, (§0, §8), 'ThreadIndex', 'threadIdx.x'), "
    "'thread_extent', T.int64(8))\nA[t, 0] = 1.0",
    "ramp": "A[0, T.ramp(§0, §1, 4)] = T.broadcast(T.float32(1), 4)",
}
VALUES = {
    "argument": "T.evaluate(T.call_extern('int32', 'f', 3))",
    "evaluate": "T.evaluate(3)",
    "minimum": "T.evaluate(T.min(3, 4))",
    "cast": "T.evaluate(T.Cast('int8', 3))",
    "choice": "T.evaluate(T.Select(A[0, 0] > 0, 3, 4))",
    "broadcast": "T.evaluate(T.broadcast(3, 4))",
    "attribute": "T.attr(A, 'pragma', 3)\nA[0, 0] = 1.0",
    "annotation": "for i in T.serial(n, annotations={'k': 3}):\n    A[i, 0] = 1.0",
    "stored": "A[0, 0] = 1",
    "named": "x = T.Cast('int64', 3)\nA[x, 0] = 1.0",
}


def program(statements: str, options: str = "") -> ir.PrimFunc:
    body = "\n".join(f"    {line}" for line in statements.split("\n"))
    func = from_source(
        f"@T.prim_func({options})\n"
        f"def f(A: T.Buffer((T.int64(8), T.int64(8)), 'float32'), n: T.int64):\n{body}\n"
    )
    assert isinstance(func, ir.PrimFunc)
    return func


def stated(text: str, dtype: str) -> str:
    return re.sub(r"§(\d+)", rf"T.{dtype}(\1)", text).replace("KIND", f"'{dtype}'")


@pytest.mark.parametrize("text", INDEX_POSITIONS.values(), ids=list(INDEX_POSITIONS))
def test_a_bare_integer_in_an_index_position_has_the_index_type(text: str) -> None:
    bare = text.replace("§", "").replace(", KIND", "")
    for dtype in ("int32", "int64"):
        found = program(bare, f'index_dtype="{dtype}"')
        wanted = program(stated(text, dtype))
        ir.assert_structural_equal(found, wanted)
        ir.assert_structural_equal(from_source(script(found)), found)
    assert not ir.structural_equal(program(bare), program(stated(text, "int64")))


@pytest.mark.parametrize("text", VALUES.values(), ids=list(VALUES))
def test_values_keep_their_types(text: str) -> None:
    found = program(text, 'index_dtype="int64"')
    ir.assert_structural_equal(found, program(text))
    ir.assert_structural_equal(from_source(script(found)), found)


def test_the_type_of_a_named_value_is_stated_once() -> None:
    func = program("x: T.int64 = 3\nA[x, 0] = 1.0")
    assert "x: T.int64 = 3" in script(func)
    ir.assert_structural_equal(from_source(script(func)), func)


def test_an_expression_gives_its_type_to_the_numbers_beside_it() -> None:
    text = "for i in T.serial(T.int32(2), 8):\n    A[i, i + 1] = 1.0"
    func = program(text, 'index_dtype="int64"')
    (loop,) = ir.loops(func)
    assert {str(e.dtype) for e in (loop.loop_var, loop.min, loop.extent)} == {"int32"}


def test_ends_of_a_range_beyond_32_bits_have_one_type() -> None:
    func = program("for i in range(1, 2**40):\n    A[0, 0] = 1.0")
    (loop,) = ir.loops(func)
    assert {str(e.dtype) for e in (loop.min, loop.extent)} == {"int64"}
    ir.assert_structural_equal(from_source(script(func)), func)
    with pytest.raises(ScriptError, match="does not fit int64"):
        program("for i in range(2**63):\n    A[0, 0] = 1.0", 'index_dtype="int64"')


def test_the_decorator_reads_its_option_anywhere() -> None:
    @T.prim_func(index_dtype="int64", private=True)
    def alone(A: T.Buffer((SIZE,), "float32")):
        for i in range(SIZE):
            A[i] = T.float32(0)

    kind = ir.dtype_of("int64")

    @T.prim_func(index_dtype=kind, private=True)
    def typed(A: T.Buffer((SIZE,), "float32")):
        for i in range(SIZE):
            A[i] = T.float32(0)

    wide = "int64"

    @I.ir_module
    class Module:
        @T.prim_func(private=True, index_dtype=wide)
        def alone(A: T.Buffer((6,), "float32")):
            for i in range(6):
                A[i] = T.float32(0)

        @T.prim_func
        def narrow(A: T.Buffer((6,), "float32")):
            for i in range(6):
                A[i] = T.float32(0)

        @R.function
        def main(x: R.Tensor((6,), "float32")):
            return x

    ir.assert_structural_equal(alone, Module["alone"])
    ir.assert_structural_equal(alone.body, typed.body)
    assert [str(ir.loops(Module[n])[0].extent.dtype) for n in ("alone", "narrow")] == [
        "int64",
        "int32",
    ]
    text = script(Module)
    assert text.count("@T.prim_func") == 2
    assert text.count('index_dtype="int64"') == 1
    assert "T.int64(" not in text
    ir.assert_structural_equal(from_source(text), Module)


@T.macro
def cleared(A: ir.Buffer, rows: int) -> None:
    for i in range(rows):  # in a function of 64-bit indices i is int64
        A[i, 0] = T.float32(0)


@T.macro(hygienic=False)
def cleared_here(rows: int) -> None:
    W = T.alloc_buffer((rows,), "float32")
    W[0] = T.float32(0)


def emitted(A: ir.Buffer, rows: int) -> None:
    with T.serial(rows) as i:
        T.buffer_store(A, T.float32(0), [i, 0])


def test_a_macro_and_a_helper_take_the_index_type_of_their_caller() -> None:
    env = {"cleared": cleared, "cleared_here": cleared_here, "emitted": emitted}
    for call in ("cleared(A, 4)", "cleared_here(4)", "emitted(A, 4)"):
        for option, kind in (("", "int32"), ("(index_dtype='int64')", "int64")):
            func = from_source(
                f"@T.prim_func{option}\ndef f(A: T.Buffer((8, 8), 'float32')):\n    {call}\n",
                env=env,
            )
            numbers = [n for n in ir.collect(func.body, ir.IntImm) if n.type.is_int]
            assert {str(n.type) for n in numbers} == {kind}, call


def test_the_ir_builder_takes_it() -> None:
    with IRBuilder() as ib, T.prim_func(index_dtype="int64"):
        T.func_name("f")
        A = T.arg("A", T.Buffer((16,), "float32"))
        with T.grid(16) as i:
            T.buffer_store(A, T.float32(2), [i])
    text = (
        "@T.prim_func(index_dtype='int64')\ndef f(A: T.Buffer((16,), 'float32')):\n"
        "    for i0 in range(16):\n        A[i0] = T.float32(2)\n"
    )
    ir.assert_structural_equal(ib.get(), from_source(text))


@pytest.mark.parametrize("wrong", ["float32", "int16", "uint64", "int32x4", 64, None, "integer"])
def test_an_index_is_int32_or_int64(wrong: Any) -> None:
    with pytest.raises(ScriptError, match="an index is int32 or int64") as caught:
        T.prim_func(index_dtype=wrong)
    assert caught.value.code == "BW107"
    with pytest.raises(ScriptError, match="an index is int32 or int64") as caught:
        program("T.evaluate(0)", f"index_dtype={wrong!r}")
    assert caught.value.code == "BW107"
    assert str(caught.value).startswith("<script>:1:26: ")


@pytest.mark.parametrize("options", ["index_type='int64'", "pure=True", "**{'private': True}"])
def test_options_that_the_decorator_does_not_have_are_refused(options: str) -> None:
    with pytest.raises(ScriptError, match="@prim_func has no option") as caught:
        program("T.evaluate(0)", options)
    assert caught.value.code == "BW106"


def test_the_text_alone_says_it() -> None:
    func = program("for i in range(8):\n    A[i, 0] = 1.0", 'index_dtype="int64"')
    assert func.attrs == {"global_symbol": "f"}
    assert script(func).startswith('@T.prim_func(index_dtype="int64")\n')
    assert "for i in range(T.int64(8)):" in script(func.body)  # a fragment says it itself
    private = func.replace(attrs={"global_symbol": "f", "tir.is_private": True})
    assert script(private).startswith('@T.prim_func(private=True, index_dtype="int64")\n')


@pytest.mark.parametrize(
    ("bounds", "header", "loops"),
    [
        ("4, 5", "@T.prim_func", "4, 5"),
        ("T.int64(4), 5", "@T.prim_func", "T.int64(4), 5"),
        ("T.int64(4), T.int64(5)", '@T.prim_func(index_dtype="int64")', "4, 5"),
        ("T.int64(4), 5, T.int64(6)", '@T.prim_func(index_dtype="int64")', "4, T.int32(5), 6"),
        ("T.int16(4), T.int16(5)", "@T.prim_func", "T.int16(4), T.int16(5)"),
    ],
)
def test_the_type_of_most_literals_is_chosen(bounds: str, header: str, loops: str) -> None:
    names = ", ".join("ijk"[: bounds.count(",") + 1])
    func = from_source(
        f"@T.prim_func\ndef f(x: T.int32):\n    for {names} in T.grid({bounds}):\n"
        "        T.evaluate(T.int64(7))\n"
    )
    text = script(func).splitlines()
    assert text[0] == header
    assert text[2].strip() == f"for {names} in T.grid({loops}):"
    assert text[3].strip() == "T.evaluate(T.int64(7))"
    ir.assert_structural_equal(from_source(script(func)), func)


def test_marks_are_under_what_is_printed() -> None:
    func = program("for i in range(8):\n    A[i, 0] = 1.0", 'index_dtype="int64"')
    (loop,) = ir.loops(func)
    for root, line in ((func, "for i in range(8):"), (loop, "for i in range(T.int64(8)):")):
        shown = script(root, marks=[loop, loop.extent]).splitlines()
        place = next(k for k, text in enumerate(shown) if text.strip() == line)
        carets = shown[place + 1]
        assert carets[shown[place].index("8" if root is func else "T.int64(8)")] == "^"
        assert len(carets) <= len(shown[place])


def test_notes_of_errors_print_programs_with_their_index_type() -> None:
    sch = bw.Schedule(
        program(
            "W = T.alloc_buffer((8,), 'float32')\n"
            "for i, k in T.grid(8, 8):\n    with T.block('W'):\n"
            "        vi, vk = T.axis.remap('SR', [i, k])\n"
            "        with T.init():\n            W[vi] = 0.0\n        W[vi] += A[vi, vk]\n"
            "for i in range(8):\n    with T.block('A'):\n        vi = T.axis.spatial(8, i)\n"
            "        A[vi, 0] = W[vi]",
            'index_dtype="int64"',
        )
    )
    with pytest.raises(bw.ScheduleError) as caught:
        sch.parallel(sch.get_loops("W")[1])
    assert 'index_dtype="int64"' in str(caught.value)
    assert "T.int64(" not in str(caught.value)


class Draw:
    """A program whose index literals have drawn types, and how many of each type there are."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.count = {"int32": 0, "int64": 0}
        self.default = self.chance.choice(["int32", "int64"])
        self.share = self.chance.random()

    def kind(self) -> str:
        """The type of the next literal, or of two that stand side by side."""
        found = "int64" if self.chance.random() < self.share else "int32"
        self.count[found] += 1
        return found

    def number(self, low: int = 1, high: int = 9, kind: str = "") -> str:
        """A literal, bare or with its type."""
        kind, value = kind or self.kind(), self.chance.randint(low, high)
        bare = kind == self.default and self.chance.random() < 0.7
        return str(value) if bare else f"T.{kind}({value})"

    def pair(self) -> str:
        kind = self.kind()
        return f"{self.number(1, 3, kind)}, {self.number(4, 9, kind)}"

    def numbers(self) -> str:
        return ", ".join(self.number() for _ in range(self.chance.randint(2, 3)))

    def loop(self, depth: int) -> str:
        names = f"i_{depth}, j_{depth}"
        match self.chance.randrange(3):
            case 0:
                return f"for {names} in T.grid({self.number()}, {self.number()}):"
            case 1:
                bounds = self.chance.choice([self.number, self.pair])()
                kind = self.chance.choice(["serial", "parallel", "unroll", "vectorized"])
                return f"for i_{depth} in T.{kind}({bounds}):"
            case _:
                return f"with T.launch_thread('threadIdx.x', {self.number()}) as t_{depth}:"

    def statements(self, depth: int) -> list[str]:
        place = f"x{self.chance.randrange(10**9)}"
        match self.chance.randrange(6 if depth else 3):
            case 0:
                function = "alloc_buffer" if depth == 3 else "allocate"
                return [f"{place} = T.{function}(({self.numbers()}), 'float32')"]
            case 1:
                return [f"A[T.ramp({self.pair()}, 4)] = T.broadcast(T.float32(1), 4)"]
            case 2:
                return [
                    f"with T.block('{place}'):",
                    f"    v = T.axis.spatial({self.pair()})",
                    "    A[v] = 1.0",
                ]
            case _:
                header = self.loop(depth)
                inside = [line for _ in range(2) for line in self.statements(depth - 1)]
                return [header, *(f"    {line}" for line in inside), "    T.evaluate(n)"]

    def text(self) -> str:
        body = [line for _ in range(3) for line in self.statements(3)]
        lines = "".join(f"    {line}\n" for line in body)
        return (
            f"@T.prim_func(index_dtype='{self.default}')\n"
            f"def f(A: T.Buffer(({self.number(8, 99)},), 'float32'), n: T.int64):\n{lines}"
        )


@pytest.mark.parametrize("seed", range(60))
def test_drawn_programs_round_trip_and_state_the_fewest_types(seed: int) -> None:
    draw = Draw(seed)
    func = from_source(draw.text())
    text = script(func)
    again = from_source(text)
    ir.assert_structural_equal(again, func)
    assert script(again) == text
    count = draw.count
    assert ('index_dtype="int64"' in text) is (count["int64"] > count["int32"])
    assert len(re.findall(r"T\.int(?:32|64)\(\d", text)) == min(count.values())
