"""Nodes: identity, generated traversal, structural equality and hash, on small and deep trees."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from blockwright import ir
from blockwright.ir import Expr
from blockwright.script.ir import from_source
from blockwright.support import IRError

MATMUL = """
@T.prim_func
def matmul(A: T.Buffer((16, 16), "float32"), B: T.Buffer((16, 16), "float32"),
           C: T.Buffer((16, 16), "float32")):
    for i, j, k in T.grid(16, 16, 16):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0.0
            C[vi, vj] += A[vi, vk] * B[vk, vj]
"""
GRAPH = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), w: R.Tensor((4, 4), "float32")):
    n = T.int64()
    with R.dataflow():
        y: R.Tensor((n, 4), "float32") = R.matmul(x, w)
        z: R.Tensor((n, 4), "float32") = R.exp(y)
        R.output(z)
    return z
"""


@pytest.fixture
def matmul() -> ir.PrimFunc:
    return from_source(MATMUL)


@pytest.mark.parametrize("text", [MATMUL, GRAPH])
def test_identity_pass_returns_the_very_same_object(text: str) -> None:
    program = from_source(text)

    class Identity(ir.Mutator):
        pass

    assert Identity()(program) is program
    assert ir.rewrite_bottom_up(program, lambda node: None) is program
    assert ir.substitute(program, {}) is program


def test_map_children_keeps_what_did_not_change(matmul: ir.PrimFunc) -> None:
    load = ir.collect(matmul, ir.BufferLoad)[1]
    rewritten = ir.rewrite_bottom_up(
        matmul, lambda n: ir.FloatImm(2.0, n.dtype) if n is load else None
    )
    assert rewritten is not matmul
    assert rewritten.buffers == matmul.buffers
    old, new = ir.blocks(matmul)[1], ir.blocks(rewritten)[1]
    assert new.init is old.init
    assert new.iter_vars is old.iter_vars


def test_comparison_and_truth_of_expressions_raise() -> None:
    x, y = ir.var("x"), ir.var("y")
    for wrong in (lambda: x == y, lambda: x != y, lambda: bool(x < y), lambda: x in [y]):
        with pytest.raises(IRError) as caught:
            wrong()
        assert caught.value.help is not None


def test_nodes_are_immutable(matmul: ir.PrimFunc) -> None:
    with pytest.raises(AttributeError):
        matmul.body = ir.SeqStmt(())  # type: ignore[misc]


def test_closed_programs_compare_up_to_names() -> None:
    renamed = MATMUL.replace("i, j, k in", "a, b, c in").replace("[i, j, k]", "[a, b, c]")
    ir.assert_structural_equal(from_source(MATMUL), from_source(renamed))
    one, two = from_source(MATMUL), from_source(renamed)
    assert ir.structural_hash(one) == ir.structural_hash(two)


@pytest.mark.parametrize(
    ("one", "two", "equal"),
    [
        ("n * 4, 6", "m * 4, 6", True),
        ("n + m, n", "m + n, m", True),
        ("n * 4, n + 1", "n * 4, m + 1", False),
        ("n * m, n", "n * m, m", False),
    ],
)
def test_sizes_inside_dimensions_are_bound(one: str, two: str, equal: bool) -> None:
    def program(shape: str) -> ir.PrimFunc:
        result = from_source(f"""
@T.prim_func
def f(a: T.handle):
    n = T.int32()
    m = T.int32()
    A = T.match_buffer(a, ({shape}), "float32")
    for i in range(3):
        A[0, 0] = T.float32(i)
""")
        assert isinstance(result, ir.PrimFunc)
        return result

    first, second = program(one), program(two)
    assert ir.structural_equal(first, second) is equal
    assert (ir.structural_hash(first) == ir.structural_hash(second)) is equal


def test_an_equal_program_is_found_under_another_name() -> None:
    known = ir.Programs()
    known.add("first", from_source(MATMUL))
    called_otherwise = from_source(MATMUL)
    called_otherwise = called_otherwise.replace(attrs={"global_symbol": "x", "tir.is_private": 1})
    assert known.equal_to(called_otherwise) == "first"
    assert known.equal_to(from_source(MATMUL.replace("+= A", "-= A"))) is None
    narrower = MATMUL.replace('16, 16), "float32"), B', '16, 8), "float32"), B')
    assert known.equal_to(from_source(narrower)) is None


def test_a_program_that_was_replaced_is_not_found_any_more() -> None:
    known = ir.Programs()
    known.add("f", from_source(MATMUL))
    known.add("f", from_source(MATMUL.replace("+= A", "-= A")))
    assert known.equal_to(from_source(MATMUL)) is None
    assert known.equal_to(from_source(MATMUL.replace("+= A", "-= A"))) == "f"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("16, 16), \"float32\"), B", "16, 8), \"float32\"), B"),
        ("A[vi, vk]", "A[vk, vi]"),
        ("+= A", "-= A"),
        ("0.0", "1.0"),
        ('"SSR"', '"SRS"'),
        ('T.block("C")', 'T.block("D")'),
        ("[i, j, k]", "[j, i, k]"),
        ('C: T.Buffer((16, 16), "float32")', 'C: T.Buffer((16, 16), "float16")'),
    ],
)  # fmt: skip
def test_any_difference_is_found_and_told(old: str, new: str) -> None:
    assert old in MATMUL
    one, two = from_source(MATMUL), from_source(MATMUL.replace(old, new))
    assert not ir.structural_equal(one, two)
    assert ir.structural_hash(one) != ir.structural_hash(two)
    with pytest.raises(IRError, match="programs differ at `"):
        ir.assert_structural_equal(one, two)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('x: R.Tensor(("n", 4)', 'x: R.Tensor(("n", 5)'),
        ('x: R.Tensor(("n", 4), "float32")', 'x: R.Tensor(("n", 4), "float16")'),
        ("y: R.Tensor((n, 4)", "y: R.Tensor((n, 8)"),
        ("R.matmul(x, w)", "R.matmul(w, x)"),
        ("R.exp", "R.log"),
    ],
)
def test_graph_functions_compare_with_their_annotations(old: str, new: str) -> None:
    assert old in GRAPH
    one, two = from_source(GRAPH), from_source(GRAPH.replace(old, new))
    assert not ir.structural_equal(one, two)
    assert ir.structural_hash(one) != ir.structural_hash(two)


def test_free_variables_compare_by_identity_unless_mapped() -> None:
    x, y, z = ir.var("x"), ir.var("y"), ir.var("z")
    assert ir.structural_equal(x + y, x + y)
    assert not ir.structural_equal(x + y, x + z)
    assert ir.structural_equal(x + y, y + z, map_free_vars=True)
    assert not ir.structural_equal(x + x, y + z, map_free_vars=True)
    assert not ir.structural_equal(y + z, x + x, map_free_vars=True)


def test_special_floats_compare_by_meaning() -> None:
    def number(value: float) -> Expr:
        return ir.const(value, "float32")

    assert ir.structural_equal(number(float("nan")), number(float("nan")))
    assert not ir.structural_equal(number(0.0), number(-0.0))
    assert not ir.structural_equal(ir.const(1, "int32"), ir.const(1, "int64"))


def test_constants_compare_by_content() -> None:
    one = ir.Constant(np.arange(6, dtype="float32"))
    same = ir.Constant(np.arange(6, dtype="float32"))
    other = ir.Constant(np.arange(6, dtype="float32").reshape(2, 3))
    assert ir.structural_equal(one, same)
    assert ir.structural_hash(one) == ir.structural_hash(same)
    assert not ir.structural_equal(one, other)


def deep(depth: int, leaf: Expr) -> Expr:
    value = leaf
    for k in range(depth):
        value = ir.Add(leaf, value) if k % 2 else ir.Mul(value, leaf)
    return value


def test_deep_trees_do_not_overflow() -> None:
    x = ir.var("x")
    one, two = deep(20_000, x), deep(20_000, x)
    assert ir.structural_equal(one, two)
    assert ir.structural_hash(one) == ir.structural_hash(two)
    assert not ir.structural_equal(one, deep(19_999, x))
    assert sum(1 for _ in ir.walk(one)) == 40_001


def test_deep_statements_do_not_overflow() -> None:
    body: ir.Stmt = ir.Evaluate(ir.const(0, "int32"))
    for _ in range(20_000):
        body = ir.IfThenElse(ir.const(True, "bool"), body)
    function = ir.PrimFunc((), (), body)
    assert ir.structural_equal(function, function.replace(attrs={}))


def test_shared_nodes_are_rewritten_once() -> None:
    x, y = ir.var("x"), ir.var("y")
    value: Expr = x
    for _ in range(40):  # 2**40 paths, 41 nodes
        value = ir.Add(value, value)
    rewritten = ir.substitute(value, {x: y})
    assert isinstance(rewritten, ir.Add)
    assert rewritten.a is rewritten.b


def test_substitution_renews_buffers_consistently(matmul: ir.PrimFunc) -> None:
    function = from_source(
        "@T.prim_func\ndef f(a: T.handle):\n    n = T.int64()\n"
        "    A = T.match_buffer(a, (n,), 'float32')\n    A[0] = A[n - T.int64(1)]\n"
    )
    n = function.buffers[0].shape[0]
    fixed = ir.substitute(function, {n: ir.const(8, "int64")})
    store = ir.collect(fixed, ir.BufferStore)[0]
    load = ir.collect(store.value, ir.BufferLoad)[0]
    assert store.buffer is load.buffer is fixed.buffers[0]
    assert repr(store.buffer) == 'A: T.Buffer((T.int64(8),), "float32")'


def test_types_are_interned_and_survive_pickling() -> None:
    kind = ir.dtype_of("float32x8")
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert ir.dtype_of("f32").with_lanes(8) is kind
    assert kind.element is ir.dtype_of("float32")


@pytest.mark.parametrize("text", ["flaot32", "int", "int32x", "float32x0", ""])
def test_unknown_types_are_refused(text: str) -> None:
    with pytest.raises(IRError):
        ir.dtype_of(text)


def test_operators_fold_constants_and_match_types() -> None:
    n = ir.var("n", "int64")
    assert repr(n + 0) == "n"
    assert repr(n * 1 + 2) == "n + 2"
    assert repr(ir.const(7, "int32") // 2) == "3"
    assert repr((n < 4) & (n > 0)) == "n < 4 and n > 0"
    with pytest.raises(IRError, match="ambiguous"):
        n / 2


def test_declared_bounds_belong_to_symbols_not_to_names() -> None:
    text = """
@T.prim_func
def f(x: T.handle, y: T.handle):
    T.func_attr({{"tir_var_lower_bound": {{"n": 2}}}})
    n, m = T.int64(), T.int64()
    X = T.match_buffer(x, ({0}, {1}), "float32")
    Y = T.match_buffer(y, ({1}, {0}), "float32")
    for i, j in T.grid({1}, {0}):
        with T.block("Y"):
            vi, vj = T.axis.remap("SS", [i, j])
            Y[vi, vj] = X[vj, vi]
"""
    one, other = from_source(text.format("n", "m")), from_source(text.format("m", "n"))
    assert ir.structural_equal(one, from_source(text.format("n", "m")))
    assert not ir.structural_equal(one, other)
