"""Programs read back from their own text: the same structure, the same names, the same text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blockwright import ir
from blockwright.ir import Buffer, GraphVar, Node, Var
from blockwright.ir.printer import script
from blockwright.script.ir import from_source
from blockwright.support import ScriptError

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


def functions() -> list[tuple[str, Node]]:
    out: list[tuple[str, Node]] = []
    for path in PROGRAMS:
        module = from_source(path.read_text(), name=path.name)
        out += [(f"{path.stem}:{name}", f) for name, f in module.functions.items()]
    return out


def names(root: Node) -> list[str]:
    return [n.name for n in ir.walk(root) if isinstance(n, (Var, Buffer, GraphVar))]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_modules_round_trip(path: Path) -> None:
    module = from_source(path.read_text(), name=path.name)
    text = module.script()
    again = from_source(text)
    ir.assert_structural_equal(module, again)
    assert again.script() == text
    assert ir.structural_hash(module) == ir.structural_hash(again)


@pytest.mark.parametrize(
    ("name", "function"), functions(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_functions_round_trip_with_their_names(name: str, function: Node) -> None:
    text = script(function)
    again = from_source(text)
    ir.assert_structural_equal(function, again)
    assert names(again) == names(from_source(again.script()))
    assert again.script() == text


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_printed_text_is_as_reviewed(path: Path, golden) -> None:
    golden(path.stem, from_source(path.read_text()).script())


def test_every_part_of_a_program_can_be_shown() -> None:
    for _, function in functions():
        for node in ir.walk(function):
            assert "<" + type(node).__name__ not in repr(node)


def test_clashing_names_get_suffixes() -> None:
    outer, inner = ir.var("i"), ir.var("i")
    buffer = Buffer("i", ir.dtype_of("int32"), (ir.const(4, "int32"),))
    store = ir.BufferStore(buffer, outer + inner, (inner,))
    zero, four = ir.const(0, "int32"), ir.const(4, "int32")
    serial = ir.ForKind.SERIAL
    loops = ir.For(outer, zero, four, serial, ir.For(inner, zero, four, serial, store))
    handle = ir.var("h", "handle")
    function = ir.PrimFunc((handle,), ((handle, buffer),), loops, {"global_symbol": "f"})
    assert "for i_1, i_2 in T.grid(4, 4):\n        i[i_2] = i_1 + i_2" in repr(function)
    ir.assert_structural_equal(from_source(repr(function)), function)


def test_names_are_free_again_after_their_scope() -> None:
    text = from_source(
        "@T.prim_func\n"
        "def f(A: T.Buffer((4,), 'int32')):\n"
        "    for i in range(4):\n"
        "        A[i] = i\n"
        "    for i in range(4):\n"
        "        A[i] = i\n"
    ).script()
    assert text.count("for i in range(4)") == 2


def test_names_that_are_no_identifiers_become_some() -> None:
    loop = ir.var("i.outer")
    weird = ir.var("lambda")
    assert repr(loop + weird) == "i_outer + lambda_"


def test_function_without_a_symbol_stays_without() -> None:
    function = ir.PrimFunc((), (), ir.Evaluate(ir.const(0, "int32")))
    assert '"global_symbol": None' in repr(function)
    ir.assert_structural_equal(from_source(repr(function)), function)


NAMES = ["T", "R", "I", "cls", "max", "min", "float", "range", "functions", "class", "a.b", "a b"]
MORE_NAMES = ["a_b", "max_", "0", "", "é", "__x", 'a"b']


@pytest.mark.parametrize("key", [*NAMES, *MORE_NAMES, *map(repr, NAMES[:6])])
def test_functions_of_a_module_keep_any_name(key: str) -> None:
    module = from_source("""
@I.ir_module
class Module:
    @T.prim_func(private=True)
    def f(A: T.Buffer((4,), "float32"), out: T.Buffer((), "float32")):
        out[()] = T.max(T.min(A[0], A[1]), T.float32("inf"))
        for i in range(2, 4):
            out[()] = T.max(out[()], A[i])

    @R.function(private=True)
    def g(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        return R.add(x, R.const(float("inf"), "float32"))

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((), "float32"):
        y: R.Tensor((4,), "float32") = cls.g(x)
        z: R.Tensor((), "float32") = R.call_tir(cls.f, (y,), out_sinfo=R.Tensor((), "float32"))
        return z
""")
    called = {"f": key, "g": f"{key}2"}
    changed = ir.IRModule(
        {
            called.get(name, name): ir.rewrite_bottom_up(
                function,
                lambda n: n.replace(name=called[n.name]) if isinstance(n, ir.GlobalVar) else None,
            )
            for name, function in module.functions.items()
        }
    )
    for function in ("f", "g"):
        assert called[function] in changed
    again = from_source(changed.script())
    ir.assert_structural_equal(changed, again)
    assert list(again.functions) == list(changed.functions)
    assert [g.name for g in ir.collect(again["main"], ir.GlobalVar)] == [f"{key}2", key]
    assert again.script() == changed.script()


def test_names_of_functions_that_become_equal_stay_apart() -> None:
    one = ir.PrimFunc((), (), ir.Evaluate(ir.call("call_global", "a.b", dtype="int32")))
    keys = ["a.b", "a_b", "a b", "a_b_1", "max", "max_"]
    module = ir.IRModule(
        {
            key: one.replace(attrs={"global_symbol": key if key != "a b" else "other"})
            for key in keys
        }
    )
    again = from_source(module.script())
    ir.assert_structural_equal(again, module)
    assert list(again.functions) == keys
    assert [again[key].name for key in keys] == [k if k != "a b" else "other" for k in keys]


def test_name_of_a_function_is_given_as_text() -> None:
    from blockwright.script import tir as T

    with pytest.raises(ScriptError, match=r"BW106.*name of a function is a text"):
        from_source("@T.prim_func(name=1)\ndef f():\n    T.evaluate(0)\n")
    with pytest.raises(ScriptError, match=r"BW102.*no function 'a.b' in the module"):
        from_source(
            "@I.ir_module\nclass M:\n    @R.function\n    def f(x: R.Tensor((4,), 'int32')):\n"
            "        return cls['a.b'](x)\n"
        )

    @T.prim_func(name="a.b")
    def f(A: T.Buffer((4,), "int32")):
        A[0] = 1

    assert f.name == "a.b"
    ir.assert_structural_equal(from_source(f.script()), f)


def test_marked_nodes_are_underlined() -> None:
    function = from_source(PROGRAMS[-1].read_text())["matmul"]
    block = ir.blocks(function)[1]
    load = ir.collect(block.body, ir.BufferLoad)[1]
    loop = ir.loops(function)[1]
    text = script(function, marks=[block, load, loop]).splitlines()
    lines = {line.strip(): text[i - 1] for i, line in enumerate(text) if set(line.strip()) == {"^"}}
    assert any('T.block("C")' in line for line in lines.values())
    carets = next(i for i, line in enumerate(text) if line.strip() == "^^^^^^^^^")
    start = text[carets].index("^")
    assert text[carets - 1][start : start + 9] == "A[vi, vk]"
    loop_line = next(i for i, line in enumerate(text) if "for i, j, k" in line)
    assert text[loop_line + 1].index("^") == text[loop_line].index("j")


def test_large_constants_are_kept_beside_the_text() -> None:
    weights = np.arange(64, dtype="float32").reshape(8, 8)
    function = from_source(
        "@R.function\n"
        "def main(x: R.Tensor((8,), 'float32')):\n"
        "    y = R.matmul(x, R.constant('layer.weight'))\n"
        "    z = R.add(y, R.const([0.1, 0.2], 'float32', name='bias'))\n"
        "    return z\n",
        constants={"layer.weight": weights},
    )
    table: dict[str, np.ndarray] = {}
    text = script(function, constants=table)
    assert 'R.constant("layer.weight")' in text
    assert 'R.const([0.1, 0.2], "float32", name="bias")' in text
    assert table["layer.weight"] is weights
    ir.assert_structural_equal(from_source(text, constants=table), function)


def test_module_constants_are_references() -> None:
    arrays = {"w": np.ones(3, "float32"), "b": np.zeros(2, "int8")}
    module = ir.IRModule({}, {"constants": arrays})
    table: dict[str, np.ndarray] = {}
    text = script(module, constants=table)
    assert 'I.module_attrs({"constants": {"w": I.constant("w"), "b": I.constant("b")}})' in text
    ir.assert_structural_equal(from_source(text, constants=table), module)


MESSAGES = """
from blockwright.script import ir as I, relax as R, tir as T

@I.ir_module
class Module:
    @T.prim_func
    def f(n: T.int64, m: T.int64):
        T.Assert(n < m, "100%% of %d and %d", n, m)

    @R.function
    def g(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        n = T.int64()
        big = R.match_cast(R.prim_value(n > 4), R.Prim(value=True), "%d rows", n)
        return x
"""


def test_messages_keep_their_values() -> None:
    module = from_source(MESSAGES)
    (check,) = ir.collect(module["f"], ir.AssertStmt)
    (cast,) = ir.collect(module["g"], ir.MatchCast)
    assert (check.message, len(check.values)) == ("100%% of %d and %d", 2)
    assert (cast.message, len(cast.values)) == ("%d rows", 1)
    ir.assert_structural_equal(module, from_source(module.script()))
    other = from_source(MESSAGES.replace("n, m)\n", "n, n)\n"))
    assert not ir.structural_equal(module, other)


@pytest.mark.parametrize("message", ["%d", "%d %d %d", "%s %q"])
def test_messages_have_a_place_for_each_value(message: str) -> None:
    with pytest.raises(ScriptError, match="message") as caught:
        from_source(MESSAGES.replace("100%% of %d and %d", message))
    assert caught.value.code == "BW106"
