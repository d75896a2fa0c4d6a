"""Patterns over graph functions: what matches, what does not and why, and rewriting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import check_graph, constant
from blockwright.graph.pattern import (
    Pattern,
    call_library,
    call_op,
    is_const,
    is_library,
    is_op,
    is_parameter,
    is_program,
    is_tuple,
    rewrite,
    rewrite_module,
    wildcard,
)
from blockwright.support import GraphError


def graph(body: str, params: str = 'x: R.Tensor(("n", 8), "float32")') -> ir.GraphFunction:
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    return bw.from_source(f"@R.function\ndef main({params}):\n    n = T.int64()\n{lines}\n")


def roots(pattern: Pattern, function: ir.GraphFunction) -> list[str]:
    return [match.root.name for match in pattern.matches(function)]


# ------------------------------------------------------------------------------------- elementary
def test_a_call_matches_by_operator_operands_and_their_number() -> None:
    f = graph("a = R.exp(x)\nb = R.subtract(a, x)\nreturn R.relu(b)")
    x = wildcard()
    assert roots(is_op("exp")(is_parameter()), f) == ["a"]
    assert roots(is_op("subtract"), f) == ["b"]  # any operands
    assert roots(is_op("subtract")(is_op("exp")(x), x), f) == ["b"]
    assert roots(is_op("subtract")(x, is_op("exp")(x)), f) == []
    assert roots(is_op("exp", "subtract"), f) == ["a", "b"]
    assert roots(is_op("subtract")(x), f) == []
    assert roots(is_op("subtract")(x, ...), f) == ["b"]


def test_one_pattern_object_stands_for_one_value() -> None:
    f = graph("a = R.exp(x)\nb = R.add(a, a)\nc = R.add(a, x)\nreturn R.multiply(b, c)")
    x = wildcard()
    assert roots(is_op("add")(x, x), f) == ["b"]
    shared = is_op("exp")(wildcard())
    diamond = is_op("multiply")(is_op("add")(shared, shared), is_op("add")(shared, wildcard()))
    (match,) = diamond.matches(f)
    assert [v.name for v in match.calls] == ["gv", "b", "a", "c"]
    assert match[shared] is match.calls[2]


def test_operands_of_commutative_operators_match_in_both_orders() -> None:
    f = graph("a = R.exp(x)\nb = R.add(x, a)\nc = R.subtract(x, a)\nreturn (b, c)")
    e = is_op("exp")(wildcard())
    assert roots(is_op("add")(e, wildcard()), f) == ["b"]
    assert roots(is_op("subtract")(e, wildcard()), f) == []


def test_constants_match_by_value() -> None:
    f = graph(
        'a = R.add(x, R.const(2.0, "float32"))\n'
        'b = R.add(a, R.const([2.0] * 8, "float32"))\n'
        'return R.add(b, R.const([1.0] * 8, "float32"))'
    )
    assert roots(is_op("add")(wildcard(), is_const()), f) == ["a", "b", "gv"]
    assert roots(is_op("add")(wildcard(), is_const(2.0)), f) == ["a", "b"]


def test_other_names_of_a_value_are_looked_through_but_casts_are_not() -> None:
    f = graph("a = R.exp(x)\nb = a\nc = R.negative(b)\nreturn c")
    assert roots(is_op("negative")(is_op("exp")(wildcard())), f) == ["c"]
    f = graph(
        'a = R.exp(x)\nb = R.match_cast(a, R.Tensor((4, 8), "float32"))\nreturn R.negative(b)'
    )
    explained = str(is_op("negative")(is_op("exp")(wildcard())).explain(f))
    assert "`the match_cast b` is not a call of exp" in explained


def test_tuples_and_their_items() -> None:
    f = graph(
        "parts = R.split(x, indices_or_sections=2, axis=1)\n"
        "a = parts[0]\nb = parts[1]\nj = R.concat((b, a), axis=1)\nreturn (j, a)"
    )
    parts = is_op("split")(wildcard())
    assert roots(parts[1], f) == ["b"]
    swapped = is_op("concat")(parts[1], parts[0])  # operand tuples are flat
    assert roots(swapped, f) == ["j"]
    f = graph("t = (x, R.exp(x))\nreturn t")
    (match,) = is_tuple(is_parameter(), is_op("exp")(wildcard())).matches(f)
    assert match.root.name == "t"


def test_calls_of_programs_and_libraries() -> None:
    module = bw.from_source("""
@I.ir_module
class Module:
    @T.prim_func
    def twice(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("Y"):
                vi = T.axis.spatial(4, i)
                Y[vi] = X[vi] * T.float32(2)
    @R.function
    def main(x: R.Tensor((4,), "float32")):
        cls = Module
        a = R.call_tir(cls.twice, (x,), out_sinfo=R.Tensor((4,), "float32"))
        b = R.call_dps_library("lib.f", (a, x), out_sinfo=R.Tensor((4,), "float32"), k=3)
        return b
""")
    f: Any = module["main"]
    twice = is_program("twice")(is_parameter())
    found = is_library("lib.f")(twice, wildcard()).has_attrs(k=3).matches(f, module)
    assert [m.root.name for m in found] == ["b"]
    assert [m.root.name for m in is_program().matches(f, module)] == ["a"]
    assert is_library("lib.g").matches(f, module) == []


# ------------------------------------------------------------------------------------- conditions
def test_types_ranks_and_attributes() -> None:
    f = graph(
        'a = R.astype(x, dtype="float16")\nb = R.sum(x, axes=1)\nc = R.sum(x, axes=[0])\n'
        "return (a, b, c)"
    )
    assert roots(wildcard().has_dtype("float16") & is_op("astype"), f) == ["a"]
    assert roots(is_op("sum").has_rank(1), f) == ["b", "c"]
    assert roots(is_op("sum").has_attrs(axes=(0,)), f) == ["c"]
    assert roots(is_op("sum").has_attrs(keepdims=False), f) == ["b", "c"]  # the default
    assert roots(is_op("sum").has_attrs(axes=lambda axes: axes == 1), f) == ["b"]
    assert roots(is_op("sum").has_attrs(dim=1), f) == []
    assert roots(is_op("sum").where(lambda v: "b" in getattr(v, "name", "")), f) == ["b"]


def test_shapes_are_proved_equal_or_refused() -> None:
    f = graph(
        "a = R.matmul(x, w)\nb = R.reshape(a, (2 * n, 2))\nreturn b",
        'x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 4), "float32")',
    )
    x, w = wildcard().has_shape("m", "k"), wildcard().has_shape("k", "n")
    (match,) = is_op("matmul")(x, w).matches(f)
    assert [ir.const_int(match.dims[name]) for name in "mkn"] == [None, 8, 4]
    assert roots(is_op("matmul").has_shape(None, 4), f) == ["a"]
    assert roots(is_op("matmul").has_shape(..., 4), f) == ["a"]
    assert roots(is_op("matmul").has_shape(4, 4), f) == []  # n may be 4: not proved
    n = ir.free_vars(f.params[0].tensor_info.shape[0])[0]  # type: ignore[index]
    assert roots(is_op("reshape").has_shape(n + n, 2), f) == ["b"]
    square = wildcard().has_shape("s", "s")
    assert "is not known to be n (s)" in str(is_op("matmul")(square, wildcard()).explain(f))


def test_used_only_inside() -> None:
    inner = is_op("exp")(wildcard()).used_only_inside()
    assert roots(is_op("negative")(inner), graph("a = R.exp(x)\nreturn R.negative(a)")) == ["gv"]
    f = graph("a = R.exp(x)\nb = R.negative(a)\nreturn R.add(a, b)")
    assert roots(is_op("negative")(inner), f) == []
    assert "a is also read by gv, outside of the match" in str(is_op("negative")(inner).explain(f))
    assert roots(is_op("add")(inner, is_op("negative")(inner)), f) == ["gv"]


# ----------------------------------------------------------------------------------- combinations
def test_alternatives_prefer_the_left_and_optional_parts_the_longer() -> None:
    f = graph("a = R.exp(x)\nb = R.negative(a)\nreturn R.relu(b)")
    base = is_op("exp")(wildcard())
    either = is_op("negative")(wildcard().named("any") | base.named("exp"))
    (match,) = either.matches(f)
    assert "any" in match
    assert "exp" not in match
    longer = base.optional(lambda p: is_op("negative")(p)).optional(lambda p: is_op("relu")(p))
    assert [len(m.calls) for m in longer.matches(f)] == [1, 2, 3]


def test_chains_repeat_a_step() -> None:
    f = graph(
        "a = R.matmul(x, R.permute_dims(x, axes=(1, 0)))\n"
        'b = R.add(a, R.const(1.0, "float32"))\nc = R.relu(b)\n'
        'd = R.add(c, R.const(3.0, "float32"))\nreturn d'
    )
    base = is_op("matmul")
    step = is_op("relu"), is_op("add")

    def link(p: Pattern) -> Pattern:
        return step[0](p) | step[1](p, is_const().named("shift"))

    assert [len(m.calls) for m in base.repeated(link).matches(f)] == [1, 2, 3, 4]
    (match,) = base.repeated(link, at_least=3).matches(f)
    shifts = [v for v in match.all("shift") if isinstance(v, ir.Constant)]
    assert [float(v.data) for v in shifts] == [1.0, 3.0]
    with pytest.raises(GraphError, match="2 values are captured"):
        match["shift"]
    assert [len(m.calls) for m in base.repeated(link, at_most=1).matches(f)] == [1, 2]


def test_a_dag_that_a_value_dominates() -> None:
    f = graph(
        "a = R.matmul(x, R.permute_dims(x, axes=(1, 0)))\n"
        "b = R.sigmoid(a)\nc = R.multiply(a, b)\n"  # silu: two paths from a
        'd = R.add(c, R.const(1.0, "float32"))\nreturn d'
    )
    silu = is_op("matmul").through("sigmoid", "multiply", "add")
    assert roots(silu, f) == ["a", "b", "c", "d"]
    assert {v.name for v in silu.matches(f)[3].calls} == {"a", "b", "c", "d"}
    f = graph("a = R.exp(x)\nb = R.multiply(R.sigmoid(a), x)\nreturn b")  # x comes from outside
    assert "b" not in roots(is_op("exp").through("sigmoid", "multiply"), f)


def test_matches_cross_dataflow_blocks_but_no_effect() -> None:
    template = """
with R.dataflow():
    a = R.exp(x)
    R.output(a)
{}
with R.dataflow():
    b = R.negative(a)
    R.output(b)
return b
"""
    pattern = is_op("negative")(is_op("exp")(wildcard()))
    assert roots(pattern, graph(template.format(""))) == ["b"]
    f = graph(template.format('u = R.call_packed("print", x, sinfo_args=(R.Object(),))'))
    assert roots(pattern, f) == []
    assert "the effect of u lies between a and b" in str(pattern.explain(f))
    pure = 'u = R.call_pure_packed("f", x, sinfo_args=(R.Object(),))'
    assert roots(pattern, graph(template.format(pure))) == ["b"]


def test_matches_stay_inside_a_branch() -> None:
    f = graph(
        "a = R.exp(x)\nif c:\n    p = R.relu(x)\n    y = R.negative(p)\nelse:\n"
        "    y = R.negative(a)\nreturn y",
        'x: R.Tensor(("n", 8), "float32"), c: R.Tensor((), "bool")',
    )
    assert len(is_op("negative")(is_op("relu")(wildcard())).matches(f)) == 1
    assert is_op("negative")(is_op("exp")(wildcard())).matches(f) == []
    doubled = rewrite(f, is_op("relu")(wildcard()), lambda m: call_op("exp", m.call().args[0]))
    assert "R.relu" not in doubled.script()


# --------------------------------------------------------------------------------------- mistakes
def test_malformed_patterns_and_missing_captures() -> None:
    with pytest.raises(GraphError, match="BW405"):
        is_op("matmull")
    with pytest.raises(GraphError, match="BW422"):
        is_op("add")(wildcard(), 2.0)  # type: ignore[arg-type]
    f = graph("return R.exp(x)")
    with pytest.raises(GraphError, match="BW422"):
        wildcard().repeated(lambda p: p).matches(f)
    (match,) = is_op("exp")(wildcard().named("x")).matches(f)
    assert match.get("y") is None
    assert match["x"] is f.params[0]
    assert "x: the parameter x" in repr(match)
    with pytest.raises(GraphError, match="nothing is captured as 'y'"):
        match["y"]
    with pytest.raises(GraphError, match="is not a call"):
        match.call("x")


# -------------------------------------------------------------------------------------- rewriting
def test_rewriting_replaces_matches_and_removes_what_nobody_reads() -> None:
    f = graph("a = R.negative(x)\nb = R.negative(a)\nreturn R.exp(b)")
    x = wildcard()
    g = rewrite(f, is_op("negative")(is_op("negative")(x)), lambda m: m[x])
    assert [type(b).__name__ for b in g.bindings] == ["VarBinding"]
    assert "negative" not in g.script()
    check_graph(g)
    assert rewrite(g, is_op("negative"), lambda m: None) is g


def test_a_matched_value_with_another_reader_stays() -> None:
    f = graph("a = R.negative(x)\nb = R.negative(a)\nreturn R.add(a, b)")
    x = wildcard()
    g = rewrite(f, is_op("negative")(is_op("negative")(x)), lambda m: m[x])
    assert [b.var.name for b in g.bindings if isinstance(b, ir.VarBinding)] == ["a", "gv"]


def test_replacements_are_put_in_normal_form_with_fresh_names() -> None:
    f = graph("exp = R.exp(x)\nreturn R.log(R.add(exp, x))")
    (log,) = is_op("log").matches(f)
    g = rewrite(
        f,
        is_op("log")(wildcard().named("s")),
        lambda m: call_op("multiply", call_op("exp", m["s"]), np.full(8, 2, np.float32)),
    )
    assert log.root.name in g.script()
    bound = [b for b in g.bindings if isinstance(b, ir.VarBinding)]
    assert [b.var.name for b in bound] == ["exp", "lv", "exp1", "gv"]
    assert all(b.var.info is not None and b.value.info is not None for b in bound)


def test_the_last_match_wins_and_matches_do_not_overlap() -> None:
    f = graph("a = R.exp(x)\nb = R.exp(a)\nc = R.exp(b)\nreturn c")
    x = wildcard()
    g = rewrite(f, is_op("exp")(is_op("exp")(x)), lambda m: call_op("sin", m[x]))
    assert [getattr(b, "value").op.name for b in g.bindings] == ["exp", "sin"]  # noqa: B009


def test_a_replacement_with_another_annotation_is_an_error() -> None:
    f = graph("return R.exp(x)")
    with pytest.raises(GraphError, match="BW421"):
        rewrite(f, is_op("exp"), lambda m: call_op("astype", m.call().args[0], dtype="float16"))
    with pytest.raises(GraphError, match="BW421"):
        rewrite(f, is_op("exp"), lambda m: 3)  # type: ignore[arg-type,return-value]
    with pytest.raises(GraphError, match="BW401"):
        rewrite(f, is_op("exp"), lambda m: call_op("exp"))
    other = graph("return R.exp(x)")
    with pytest.raises(GraphError, match="mentions z, which is not a value"):
        rewrite(f, is_op("exp"), lambda m: call_op("exp", other.params[0].replace(name="z")))


def test_a_more_precise_replacement_refines_what_follows() -> None:
    f = graph(
        'a = R.call_pure_packed("f", x, sinfo_args=(R.Tensor(ndim=2, dtype="float32"),))\n'
        "b = R.exp(a)\nreturn b"
    )
    pure = wildcard().where(lambda v: getattr(v, "name", "") == "a")
    g = rewrite(f, pure, lambda m: call_op("negative", f.params[0]))
    assert [str(v.tensor_info.shape) for v in (g.bindings[-1].var,)] != ["None"]  # type: ignore[attr-defined]
    check_graph(g)


def test_rewriting_a_module() -> None:
    module = ir.IRModule({"main": graph("a = R.exp(x)\nreturn R.log(a)")})
    x = wildcard()
    pattern = is_op("log")(is_op("exp")(x))
    new = rewrite_module(module, pattern, lambda m: m[x])
    assert new["main"].bindings == ()
    assert rewrite_module(new, pattern, lambda m: m[x]) is new


def test_library_calls_print_and_parse_again() -> None:
    f = graph("return R.exp(x)")
    g = rewrite(
        f,
        is_op("exp"),
        lambda m: call_library("l.exp", m.call().args, m.root.info or ir.ObjectInfo(), alpha=2.0),
    )
    ir.assert_structural_equal(bw.from_source(g.script()), g)
    assert constant(np.zeros(1)).info is not None


@pytest.mark.parametrize(
    "build",
    [
        lambda: wildcard().optional(lambda v: 3),
        lambda: wildcard() | 3,
        lambda: wildcard() & None,
        lambda: is_tuple(3),
        lambda: is_op("exp")(3),
    ],
)
def test_what_is_no_pattern_is_refused(build: Any) -> None:
    with pytest.raises(GraphError) as caught:
        build()
    assert caught.value.code == "BW422"
