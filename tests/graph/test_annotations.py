"""Annotations are checked against deduction: what is not implied is refused, with its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder, check_graph

X = np.arange(4, dtype="float32")
VECTOR = 'x: R.Tensor((4,), "float32")'
SIZES = 'x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("k",), "float32")'
PROGRAM = """
@T.prim_func(private=True)
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("Y"):
            vi = T.axis.spatial(4, i)
            Y[vi] = X[vi] + T.float32(1)
"""
CALL = 'return R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((4,), "float32"))'
SYMBOLIC = """
@T.prim_func(private=True)
def f(x: T.handle, y: T.handle):
    {attrs}
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (n * 2,), "float32")
    for i in range(n):
        with T.block("Y"):
            vi = T.axis.spatial(n, i)
            Y[vi * 2] = X[vi]
            Y[vi * 2 + 1] = X[vi]
"""


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip("\n").splitlines())


def module(body: str, params: str = VECTOR, result: str = "", extra: str = "") -> ir.IRModule:
    arrow = f" -> {result}" if result else ""
    main = f"@R.function\ndef main({params}){arrow}:\n{indented(body)}\n"
    return bw.from_source(f"@I.ir_module\nclass M:\n{indented(extra + main)}\n")


def refused(built: ir.IRModule) -> str:
    """The code with which all three entries refuse a module."""
    codes: list[str] = []
    for entry in (bw.validate, bw.build, bw.compile):
        with pytest.raises(bw.BlockwrightError) as caught:
            entry(built)
        codes.append(caught.value.code)
        assert all(d.span is not None for d in caught.value.diagnostics)
    assert len(set(codes)) == 1
    return codes[0]


@pytest.mark.parametrize(
    "annotation",
    [
        'R.Tensor((4,), "float16")',
        'R.Tensor((4,), "int32")',
        'R.Tensor((5,), "float32")',
        'R.Tensor((4, 1), "float32")',
        'R.Tensor((), "float32")',
        "R.Tensor(ndim=2)",
        "R.Tuple(R.Tensor)",
        "R.Shape([4])",
        'R.Prim("float32")',
    ],
)
@pytest.mark.parametrize("place", ["binding", "alias", "constant", "result"])
def test_an_annotation_that_is_not_implied_is_refused(annotation: str, place: str) -> None:
    bodies = {
        "binding": f"y: {annotation} = R.add(x, x)\nreturn y",
        "alias": f"y: {annotation} = x\nreturn y",
        "constant": f"y: {annotation} = R.const([1.0, 2, 3, 4], 'float32')\nreturn R.add(x, y)",
        "result": "return R.add(x, x)",
    }
    built = module(bodies[place], result=annotation if place == "result" else "")
    assert refused(built) == "BW408"


@pytest.mark.parametrize(
    "annotation",
    ['R.Tensor((4,), "float32")', "R.Tensor((2 + 2,))", "R.Tensor(ndim=1)", "R.Tensor", "R.Object"],
)
def test_a_coarser_annotation_costs_nothing(annotation: str) -> None:
    built = module(f"y: {annotation} = R.add(x, x)\nreturn R.add(y, x)", result=annotation)
    bw.validate(built)
    np.testing.assert_array_equal(bw.compile(built)(X), X * 3)


@pytest.mark.parametrize("annotation", ["", ': R.Tensor((4,), "float32")', ": R.Tensor(ndim=1)"])
def test_an_alias_is_the_same_value(annotation: str) -> None:
    built = module(f"a = R.add(x, x)\nb{annotation} = a\nc = R.exp(b)\nreturn R.subtract(c, a)")
    np.testing.assert_allclose(bw.compile(built)(X), np.exp(X * 2) - X * 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("annotation", "castable"),
    [
        ('R.Tensor((5,), "float32")', False),
        ('R.Tensor((4,), "float16")', False),
        ("R.Tensor(ndim=2)", False),
        ('R.Tensor(("n",), "float32")', True),
    ],
)
def test_match_cast_is_advised_only_where_it_can_succeed(annotation: str, castable: bool) -> None:
    params = f'{VECTOR}, z: R.Tensor(("n",), "float32")'
    built = module(f"y: {annotation} = R.exp(x)\nreturn y", params)
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.validate(built)
    assert ("match_cast" in (caught.value.help or "")) == castable
    cast = module(f"y = R.match_cast(x, {annotation})\nreturn R.exp(y)", params)
    if castable:
        np.testing.assert_array_equal(
            bw.compile(cast)(X, X), bw.compile(module("return R.exp(x)"))(X)
        )
    else:
        assert refused(cast) == "BW409"


def test_fields_of_nested_tuples() -> None:
    built = module("t = ((x, R.exp(x)), R.negative(x))\nu = t\nreturn u[0][1], t[1]")
    first, second = bw.compile(built)(X)
    np.testing.assert_allclose(first, np.exp(X), rtol=1e-6)
    np.testing.assert_array_equal(second, -X)


def test_sizes_of_programs_are_shown_without_their_type() -> None:
    text = CALL.replace("(x,)", "(z,)")
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.validate(module(text, 'z: R.Tensor(("n",), "float32")', extra=PROGRAM))
    assert "n is not known to be 4" in caught.value.message


def test_the_message_shows_both_annotations() -> None:
    built = module('y: R.Tensor((5,), "float16") = R.add(x, x)\nreturn y')
    with pytest.raises(bw.ValidationError) as caught:
        bw.validate(built)
    assert 'R.Tensor((5,), "float16")' in caught.value.message
    assert 'R.Tensor((4,), "float32")' in caught.value.message


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ('R.Tensor(("n", 4), "float32")', None),
        ('R.Tensor(("n + 0", 4), "float32")', None),
        ('R.Tensor(("k", 4), "float32")', "BW408"),
        ('R.Tensor(("n + 1", 4), "float32")', "BW408"),
        ('R.Tensor(("q", 4), "float32")', "BW226"),
    ],
)
def test_symbolic_results(result: str, code: str | None) -> None:
    built = module("return R.add(x, x)", SIZES, result)
    if code is None:
        bw.validate(built)
    else:
        assert refused(built) == code


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ('x: R.Tensor(("n * n",), "float32")', "BW226"),
        ('x: R.Tensor((-4,), "float32")', "BW250"),
        ('x: R.Tensor((2**61, 4), "float32")', "BW250"),
        ('x: R.Tensor((4,), "float32x4")', "BW251"),
        ("x: R.Tensor((4,), 'handle')", "BW251"),
    ],
)
def test_parameters_that_bind_nothing_or_cannot_be(params: str, code: str) -> None:
    assert refused(module("return x", params)) == code


def test_calls_solve_for_the_only_symbol_of_a_dimension() -> None:
    body = "y = R.reshape(x, R.shape([n, 2]))\nreturn y"
    compiled = bw.compile(module(body, 'x: R.Tensor(("n * 2",), "float32")'))
    np.testing.assert_array_equal(compiled(X), X.reshape(-1, 2))
    with pytest.raises(bw.ArgumentError):
        compiled(X[:3])


def test_a_later_parameter_binds_a_symbol() -> None:
    built = module("return x", 'x: R.Tensor(("n * 2",), "float32"), y: R.Tensor(("n",), "float32")')
    compiled = bw.compile(built)
    np.testing.assert_array_equal(compiled(X, X[:2]), X)
    with pytest.raises(bw.ArgumentError):
        compiled(X, X[:3])


# -------------------------------------------------------------------------------------- match_cast
@pytest.mark.parametrize(
    "pattern",
    [
        'R.Tensor((k,), "float32")',
        'R.Tensor((n, 4), "int32")',
        'R.Tensor((n, 5), "float32")',
        'R.Tensor((n + 1, 4), "float32")',
        "R.Tensor(ndim=3)",
        "R.Shape([n, 4])",
        'R.Tuple(R.Tensor((n, 4), "float32"))',
    ],
)
def test_a_cast_that_never_holds_is_refused(pattern: str) -> None:
    assert refused(module(f"z = R.match_cast(x, {pattern})\nreturn z", SIZES)) == "BW409"


@pytest.mark.parametrize(
    "body",
    [
        'z = R.match_cast(x, R.Tensor((k, 4), "float32"))\nreturn R.add(z, z)',
        'm = T.int64()\nz = R.match_cast(x, R.Tensor((m, m), "float32"))\nreturn R.add(z, z)',
        'z = R.match_cast(x, R.Tensor((k, 4), "float32"))\nreturn R.add(y, y)',
        'm = T.int64()\np = (x, y)\nz = R.match_cast(p, R.Tuple(R.Tensor((m, 4), "float32"), '
        'R.Tensor((m,), "float32")))\nreturn R.add(z[0], R.expand_dims(z[1], axis=1))',
        "s = R.match_cast(R.shape_of(x), R.Shape([k, 4]))\nreturn R.add(x, x)",
    ],
)
def test_a_cast_is_checked_when_the_program_runs(body: str) -> None:
    built = module(body, SIZES)
    bw.validate(built)
    compiled = bw.compile(built)
    fits, x = np.ones(4, "float32"), np.ones((4, 4), "float32")
    assert (np.asarray(compiled(x, fits)) > 0).all()
    with pytest.raises(bw.ArgumentError, match="BW704"):
        compiled(np.ones((5, 4), "float32"), np.ones(6, "float32"))


def test_an_annotation_beside_a_cast_is_checked_too() -> None:
    cast = 'R.match_cast(x, R.Tensor((k, 4), "float32"))'
    assert refused(module(f'z: R.Tensor((3, 4), "float32") = {cast}\nreturn z', SIZES)) == "BW408"
    bw.validate(module(f"z: R.Tensor((k, 4)) = {cast}\nreturn z", SIZES))


@pytest.mark.parametrize("pattern", ["R.Object", 'R.Tuple(R.Object, R.Tensor((4,), "float32"))'])
def test_a_cast_to_any_value_is_the_value(pattern: str) -> None:
    body = f"p = (x, R.add(x, x))\nz = R.match_cast(p, {pattern})\nreturn R.subtract(z[1], z[0])"
    np.testing.assert_array_equal(bw.compile(module(body))(X), X)


def test_symbols_of_a_cast_stand_for_the_sizes_of_the_value() -> None:
    body = (
        'm = T.int64()\nz = R.match_cast(x, R.Tensor((m, 4), "float32"))\n'
        'w: R.Tensor((m, 4), "float32") = R.add(x, z)\nreturn w'
    )
    built = module(body, SIZES, 'R.Tensor(("n", 4), "float32")')
    assert bw.compile(built)(np.ones((3, 4), "float32"), X).shape == (3, 4)


# ------------------------------------------------------------------------ calls of tensor programs
@pytest.mark.parametrize(
    ("call", "code"),
    [
        (CALL.replace("(4,)", "(5,)"), "BW408"),
        (CALL.replace("float32", "float16"), "BW408"),
        (CALL.replace("(4,)", "(4, 1)"), "BW408"),
        (CALL.replace('R.Tensor((4,), "float32")', "R.Object"), "BW408"),
        (CALL.replace("R.Tensor(", "R.Tuple(R.Tensor(").replace('"))', '")))'), "BW408"),
        (CALL.replace('R.Tensor((4,), "float32")', 'R.Tensor(dtype="float32", ndim=1)'), "BW407"),
        (CALL.replace("(x,)", "(x, x)"), "BW403"),
        (CALL.replace("(x,)", "()"), "BW403"),
        (CALL[:-1] + ", tir_vars=R.shape([4]))", "BW403"),
        (CALL.replace("(x,)", "(R.exp(R.concat([x, x])),)"), "BW401"),
        (CALL.replace("(x,)", '(R.astype(x, dtype="float64"),)'), "BW402"),
        (CALL.replace("(x,)", "(R.reshape(x, R.shape([2, 2])),)"), "BW402"),
        (CALL.replace("(x,)", "(R.concat((x, x)),)"), "BW402"),
        (CALL.replace("cls.f", "cls.main"), "BW415"),
        ("return cls.f(x)", "BW415"),
        (
            'y = R.call_tir(cls.f, (), out_sinfo=[R.Tensor((4,), "float32"), '
            'R.Tensor((4,), "float32")])\nreturn y[0]',
            "BW416",
        ),
    ],
)
def test_calls_that_do_not_fit_their_program(call: str, code: str) -> None:
    if code == "BW401":
        call = call.replace("[x, x]", "(x, x), axis=3")
    assert refused(module(call, extra=PROGRAM)) == code


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X[vi] +", "X[vi] + X[vi] +"),
        ("            Y[vi] =", "            X[vi] = T.float32(7)\n            Y[vi] ="),
        ("X: T.Buffer((4,)", 'X: T.Buffer((4,), strides=(2,), dtype="float32"), Z: T.Buffer((4,)'),
        ("X: T.Buffer((4,), ", "X: T.Buffer((4,), elem_offset=2, dtype="),
        ("X: T.Buffer((4,), ", 'X: T.Buffer((4,), scope="shared", dtype='),
        ("(X: T", "(s: T.float32, X: T"),
        ("(X: T", "(p: T.handle, X: T"),
    ],
)
def test_programs_that_a_graph_cannot_call(old: str, new: str) -> None:
    built = module(
        CALL.replace("(x,)", "(x, x)") if "Z:" in new else CALL, extra=PROGRAM.replace(old, new)
    )
    if "X[vi] + X" in new:
        np.testing.assert_array_equal(bw.compile(built)(X), X * 2 + 1)
    else:
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code == "BW416"


READS_ITS_RESULT = {
    "an update": """
    for i in range(4):
        with T.block("Y"):
            vi = T.axis.spatial(4, i)
            Y[vi] = Y[vi] + X[vi]
""",
    "a sum without initial value": """
    for i, k in T.grid(4, 4):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            Y[vi] = Y[vi] + X[vk]
""",
    "a part that comes later": """
    for i in range(4):
        with T.block("A"):
            vi = T.axis.spatial(4, i)
            Y[vi] = X[vi]
            X_[vi] = Y[3 - vi]
""",
    "a sum with initial value": """
    for i, k in T.grid(4, 4):
        with T.block("Y"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                Y[vi] = T.float32(0)
            Y[vi] = Y[vi] + X[vk]
""",
    "two steps": """
    for i in range(4):
        with T.block("A"):
            vi = T.axis.spatial(4, i)
            Y[vi] = X[vi]
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            Y[vi] = Y[vi] * X[vi]
""",
}  # fmt: skip


@pytest.mark.parametrize("name", READS_ITS_RESULT)
def test_a_result_is_written_before_it_is_read(name: str) -> None:
    params = 'X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")'
    body = READS_ITS_RESULT[name]
    out = 'R.Tensor((4,), "float32")'
    if "X_" in body:
        params += ', X_: T.Buffer((4,), "float32")'
        out = f"[{out}, {out}]"
    program = f"@T.prim_func(private=True)\ndef f({params}):\n{body}"
    built = module(f"return R.call_tir(cls.f, (x,), out_sinfo={out})", extra=program)
    if name in ("a sum with initial value", "two steps"):
        want = np.full(4, X.sum()) if "sum" in name else X * X
        np.testing.assert_allclose(bw.compile(built)(X), want)
    else:
        assert refused(built) == "BW416"


@pytest.mark.parametrize(
    ("size", "fits"),
    [("m * 2", True), ("m + m", True), ("m", False), ("8", False), ("m * 2 + 1", False)],
)
def test_symbolic_results_of_programs(size: str, fits: bool) -> None:
    body = f'm = T.int64()\nreturn R.call_tir(cls.f, (x,), R.Tensor(({size},), "float32"))'
    built = module(body, 'x: R.Tensor(("m",), "float32")', extra=SYMBOLIC.format(attrs=""))
    if fits:
        np.testing.assert_array_equal(bw.compile(built)(X), X.repeat(2))
    else:
        assert refused(built) == "BW408"


def test_a_computed_size_of_a_result_is_not_negative() -> None:
    program = """
@T.prim_func(private=True)
def f(x: T.handle, y: T.handle):
    n = T.int64()
    X = T.match_buffer(x, (n,), "float32")
    Y = T.match_buffer(y, (n - 2,), "float32")
    for i in range(n - 2):
        with T.block("Y"):
            vi = T.axis.spatial(n - 2, i)
            Y[vi] = X[vi + 2]
"""
    built = module(
        'n = T.int64()\nreturn R.call_tir(cls.f, (x,), out_sinfo=R.Tensor((n - 2,), "float32"))',
        'x: R.Tensor(("n",), "float32")',
        extra=program,
    )
    model = bw.compile(built)
    np.testing.assert_array_equal(model(X), X[2:])
    assert model(X[:2]).shape == (0,)
    with pytest.raises(bw.ArgumentError, match="dimension 0, n - 2, would be -1") as caught:
        model(X[:1])
    assert caught.value.code == "BW708"


def test_sizes_lie_within_the_bounds_that_a_program_declares() -> None:
    body = 'm = T.int64()\nreturn R.call_tir(cls.f, (x,), R.Tensor((m * 2,), "float32"))'
    attrs = 'T.func_attr({"tir_var_upper_bound": {"n": 3}})'
    text = SYMBOLIC.format(attrs=attrs)
    params = 'x: R.Tensor(("m",), "float32")'
    assert refused(module(body, params, extra=text)) == "BW402"
    bound = 'R.func_attr({"tir_var_upper_bound": {"m": 3}})\n'
    bw.validate(module(bound + body, params, extra=text))


def test_a_scalar_parameter_takes_its_own_type() -> None:
    text = PROGRAM.replace("Y: T.", "s: T.int32, Y: T.").replace(
        "T.float32(1)", 'T.Cast("float32", s)'
    )
    call = f"k = T.int64()\n{CALL[:-1]}, tir_vars=R.shape([k]))"
    params = f'{VECTOR}, y: R.Tensor(("k",), "float32")'
    compiled = bw.compile(module(call, params, extra=text))
    np.testing.assert_array_equal(compiled(X, X[:3]), X + 3)
    assert refused(module(CALL, extra=text)) == "BW403"


def test_a_program_is_called_by_its_name_in_the_module() -> None:
    other = PROGRAM.replace("def f", "def g").replace("T.float32(1)", "T.float32(100)")
    renamed = other.replace("    for", '    T.func_attr({"global_symbol": "f"})\n    for', 1)
    body = f"a{CALL.removeprefix('return')}".replace("aR", "a = R").replace("a R", "a = R")
    body += f"\nb = {CALL.removeprefix('return ').replace('cls.f', 'cls.g')}\nreturn R.add(a, b)"
    compiled = bw.compile(module(body, extra=PROGRAM + renamed))
    np.testing.assert_array_equal(compiled(X), X * 2 + 101)


def test_results_that_overwrite_arguments() -> None:
    text = PROGRAM.replace(', Y: T.Buffer((4,), "float32")', "").replace("Y[vi]", "X[vi]")
    call = "return R.call_tir_inplace(cls.f, (x,), {}, out_sinfo=R.Tensor({}, 'float32'))"
    bw.validate(module(call.format("inplace_indices=[0]", "(4,)"), extra=text))
    for indices, shape, code in (
        ("[0]", "(5,)", "BW408"),
        ("[1]", "(4,)", "BW403"),
        ("[0, 0]", "(4,)", "BW403"),
        ("[-1]", "(4,)", "BW403"),
    ):
        built = module(call.format(f"inplace_indices={indices}", shape), extra=text)
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code == code


# ------------------------------------------------------------------------- calls of graph functions
@pytest.mark.parametrize(
    ("signature", "code"),
    [
        ('a: R.Tensor((5,), "float32")', "BW402"),
        ('a: R.Tensor((4,), "int32")', "BW402"),
        ('a: R.Tensor((2, 2), "float32")', "BW402"),
        ("a: R.Shape([4])", "BW402"),
        ('a: R.Tensor((4,), "float32"), b: R.Tensor((4,), "float32")', "BW403"),
        ('a: R.Tensor((4,), "float32")', None),
    ],
)
@pytest.mark.parametrize("local", [False, True])
def test_calls_of_graph_functions(signature: str, code: str | None, local: bool) -> None:
    inner = f"@R.function\ndef g({signature}) -> R.Object:\n    return a\n"
    built = module(f"{inner}return g(x)") if local else module("return cls.g(x)", extra=inner)
    if code is None:
        bw.validate(built)
    else:
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code == code


def test_branches() -> None:
    params = f'{VECTOR}, c: R.Tensor((), "bool")'
    text = "if c:\n    y = R.add(x, x)\nelse:\n    y = {}\nreturn y"
    bw.validate(module(text.format("R.exp(x)"), params, 'R.Tensor((4,), "float32")'))
    other = text.format("R.concat((x, x))")
    bw.validate(module(other, params, "R.Tensor(ndim=1)"))
    for built in (
        module(other, params, 'R.Tensor((4,), "float32")'),
        module(text.format("R.exp(x)").replace("if c", "if x"), params),
    ):
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code in ("BW408", "BW402")


# ------------------------------------------------------------------------------ operators, builders
@pytest.mark.parametrize(
    "call",
    ["R.add(x, x, x)", "R.matmul(x)", "R.add(x, x, foo=1)", "R.sum(x, axes='a')", "R.relu(x, 0)",
     "R.astype(x)", "R.split(x, indices_or_sections=2)[0][0]",
     "R.zeros(R.shape([-4]), dtype='float32')",
     "R.zeros(R.shape([2**62, 4]), dtype='float32')"],
)  # fmt: skip
def test_operators_used_wrongly(call: str) -> None:
    assert refused(module(f"y = {call}\nreturn y")) in ("BW401", "BW417", "BW250")


def test_what_the_builder_is_told_wrongly_is_found() -> None:
    b = GraphBuilder()
    f32 = ir.dtype_of("float32")
    x = b.param("x", ir.TensorInfo((ir.const(4, "int64"),), f32))
    wrong: Any = ir.GraphCall(ir.OpRef("exp"), (x,), info=ir.TensorInfo((), f32))
    with pytest.raises(bw.ValidationError, match="BW408"):
        check_graph(b.finish("main", b.emit(wrong)))


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (': R.Tensor((4,), "float32")', ': R.Tensor((4,), "float16")', "BW107"),
        ("", ': R.Tensor((4,), "float16")', "BW408"),
        (': R.Tensor((4,), "float16")', "", "BW408"),
        (': R.Tensor((4,), "float32")', ': R.Tensor((4,), "float32")', ""),
    ],
)
def test_annotations_of_both_branches_count(first: str, second: str, code: str) -> None:
    text = f"if c:\n    y{first} = R.add(x, x)\nelse:\n    y{second} = x\nreturn y"
    parameters = f'{VECTOR}, c: R.Tensor((), "bool")'
    if not code:
        built = module(text, parameters)
        bw.validate(built)
        ir.assert_structural_equal(bw.from_source(built.script()), built)
        return
    with pytest.raises(bw.BlockwrightError) as caught:
        bw.validate(module(text, parameters))
    assert caught.value.code == code


ENDED = {
    "of a branch": """
if c:
    r = R.match_cast(R.unique(x), R.Tensor((m,), "float32"))
else:
    r = R.match_cast(R.unique(y), R.Tensor((m,), "float32"))
""",
    "of a local function": """
@R.function
def inner(v: R.Tensor(ndim=1, dtype="float32")):
    w = R.match_cast(R.unique(v), R.Tensor((m,), "float32"))
    return w
r = inner(x)
""",
    "of a local function that states it": """
@R.function
def inner(v: R.Tensor(ndim=1, dtype="float32")) -> R.Tensor((m,), "float32"):
    w = R.match_cast(R.unique(v), R.Tensor((m,), "float32"))
    return w
r = inner(x)
""",
}


@pytest.mark.parametrize("where", ENDED)
@pytest.mark.parametrize("binding", ["y", "R.unique(y)"])
def test_symbols_end_with_their_branch_or_function(where: str, binding: str) -> None:
    """A symbol that is bound again afterwards stands for another size."""
    params = (
        'c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")'
    )
    text = f"m = T.int64(){ENDED[where]}s = R.match_cast({binding}, R.Tensor((m,), 'float32'))\n"
    stated = module(f"{text}t: R.Tensor((m,), 'float32') = r\nreturn t, s", params)
    assert refused(stated) == "BW408"
    built = module(f"{text}return r, s", params)
    first, second, true = np.array([2, 1, 1], "float32"), X, np.array(True)
    for results in (
        bw.interpret(built, true, first, second),
        bw.compile(built)(true, first, second),
    ):
        np.testing.assert_array_equal(results[0], [1, 2])
        np.testing.assert_array_equal(results[1], X)


def test_symbols_of_one_name_in_different_branches_have_limits_of_their_own() -> None:
    text = """
if c:
    m = T.int64()
    r = R.match_cast(R.unique(x), R.Tensor((m,), "float32"))
else:
    m = T.int64()
    r = R.match_cast(R.unique(y), R.Tensor((m,), "float32"))
m = T.int64()
s = R.match_cast(R.unique(y), R.Tensor((m,), "float32"))
return r, s
"""
    params = 'c: R.Tensor((), "bool"), x: R.Tensor((2,), "float32"), y: R.Tensor(("k",), "float32")'
    compiled, x = bw.compile(module(text, params)), X[:2]
    for condition in (True, False):
        first, second = compiled(np.array(condition), x, X)
        np.testing.assert_array_equal(first, x if condition else X)
        np.testing.assert_array_equal(second, X)


BOUNDED = """
R.func_attr({{"tir_var_lower_bound": {{"k": 4}}}})
@R.function
def one(v: R.Tensor(("k",), "float32")):
    k = T.int64()
    w: R.Tensor((T.max(k, 4),), "float32") = R.exp(v)
    return R.max(w)
@R.function
def other(v: R.Tensor(("k",), "float32")):
    {own}k = T.int64()
    w: R.Tensor((T.max(k, 4),), "float32") = R.negative(v)
    return R.max(w)
if c:
    f = one
else:
    f = other
return f(x)
"""


def test_declared_bounds_hold_for_symbols_of_local_functions() -> None:
    """Deduction uses them, so that each call checks them."""
    params = 'c: R.Tensor((), "bool"), x: R.Tensor(("n",), "float32")'
    built = module(BOUNDED.format(own=""), params)
    compiled = bw.compile(built)
    assert bw.interpret(built, np.array(False), X) == compiled(np.array(False), X) == 0
    for condition in (True, False):
        with pytest.raises(bw.InterpretError, match="BW708"):
            bw.interpret(built, np.array(condition), X[:3])
        with pytest.raises(bw.ArgumentError, match="BW708"):
            compiled(np.array(condition), X[:3])
    own = 'R.func_attr({"tir_var_lower_bound": {"k": 3}})\n    '
    assert refused(module(BOUNDED.format(own=own), params)) == "BW408"


UNSTATED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("k",), "float32")):
    n = T.int64()
    pair = cls.inner(x)
    {line}
    return z

@R.function
def inner(a: R.Tensor(("r", "c"), "float32")):
    return (R.flatten(a), cls.innermost(a))

@R.function
def innermost(a: R.Tensor(("i", "j"), "float32")):
    i, j = T.int64(), T.int64()
    return R.shape([j, i + 1])

@R.function
def again(a: R.Tensor(("i",), "float32")):
    return cls.again(a)
"""


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ('z: R.Tensor((n * 4,), "float32") = pair[0]', None),
        ("z: R.Shape([4, n + 1]) = pair[1]", None),
        ('z: R.Tensor((n,), "float32") = pair[0]', "BW408"),
        ("z = R.negative(pair[0])", None),
        ("f = cls.inner\n    g = f(x)\n    z = R.negative(g[0])", None),
        ("f = cls.inner\n    z = f(y)", "BW402"),
        ("z = R.negative(cls.again(y))", "BW401"),
    ],
)
def test_a_result_that_is_not_stated_is_that_of_the_body(line: str, code: str | None) -> None:
    """Through functions of the module, by name or as values; a recursion must state its result."""
    built = bw.from_source(f"@I.ir_module\nclass M:\n{indented(UNSTATED.format(line=line))}\n")
    if code is None:
        bw.validate(built)
    else:
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("annotation", "code"),
    [
        ('R.Callable((R.Tensor((4, 5), "int8"),), R.Tensor((20,), "int8"))', None),
        ('R.Callable((R.Tensor(("u", 5), "int8"),), R.Tensor(("u * 5",), "int8"))', None),
        ('R.Callable((R.Tensor((4, 5), "int8"),), R.Tensor((21,), "int8"))', "BW408"),
        ('R.Callable((R.Tensor((4, 5), "int32"),), R.Tensor((20,), "int32"))', "BW402"),
        ("R.Callable((), R.Object)", "BW408"),
        ("R.Callable", None),
    ],
)
def test_a_function_as_a_value_may_be_annotated_as_one_of_its_uses(
    annotation: str, code: str | None
) -> None:
    extra = """
@R.function
def flat(a: R.Tensor(("r", "c"), "int8")) -> R.Tensor(("r * c",), "int8"):
    return R.flatten(a)
"""
    built = module(f"f: {annotation} = cls.flat\nreturn x", extra=extra)
    if code is None:
        bw.validate(built)
    else:
        with pytest.raises(bw.ValidationError) as caught:
            bw.validate(built)
        assert caught.value.code == code


TAKES = """
@R.function
def apply(
    f: R.Callable((R.Tensor(("a",), "float32"),), R.Tensor(("{size}",), "float32")),
    x: R.Tensor(("a",), "float32"),
) -> R.Tensor(("{size}",), "float32"):
    return f(x)
"""


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "R.exp(v)": lambda v, x: np.exp(v),
    "R.exp(x)": lambda v, x: np.exp(x),
    "R.add(v, x)": lambda v, x: v + x,
    "R.concat((v, v), axis=0)": lambda v, x: np.concatenate([v, v]),
}


@pytest.mark.parametrize(
    ("size", "parameter", "body", "fits"),
    [
        ("a", "p", "R.exp(v)", "xy"),  # for vectors of all sizes
        ("a + a", "p", "R.concat((v, v), axis=0)", "xy"),
        ("a", "p", "R.concat((v, v), axis=0)", ""),
        ("a + a", "p", "R.exp(v)", ""),
        ("a", "n", "R.add(v, x)", "x"),  # for vectors of the size of x
        ("a", "p", "R.exp(x)", "x"),
    ],
)
def test_a_function_is_passed_where_its_sizes_fit(
    size: str, parameter: str, body: str, fits: str
) -> None:
    """The symbols of its parameter are those of the other arguments."""
    text = f"""
@R.function
def g(v: R.Tensor(("{parameter}",), "float32")):
    return {body}
return cls.apply(g, {{}})
"""
    params = 'x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")'
    x, y = X[:3], X
    for name in "xy":
        built = module(text.format(name), params, extra=TAKES.format(size=size))
        if name not in fits:
            assert refused(built) == "BW402"
            continue
        v = x if name == "x" else y
        wanted = FUNCTIONS[body](v, x)
        for found in (bw.interpret(built, x, y), bw.compile(built)(x, y)):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize(("size", "fits"), [("n", True), ("k", False), ("p", False)])
def test_a_local_function_for_one_size_is_not_one_for_others(size: str, fits: bool) -> None:
    text = f"""
@R.function
def g(v: R.Tensor(("n",), "float32")):
    return R.add(v, x)
f: R.Callable((R.Tensor(("{size}",), "float32"),), R.Tensor(("{size}",), "float32")) = g
return f(x)
"""
    params = 'x: R.Tensor(("n",), "float32"), y: R.Tensor(("k",), "float32")'
    built = module(text, params)
    if fits:
        np.testing.assert_array_equal(bw.compile(built)(X, X[:3]), 2 * X)
    else:
        assert refused(built) == "BW408"


@pytest.mark.parametrize(
    "carried",
    [
        "R.Object",
        "R.Tensor((4,))",
        'R.Prim("int64")',
        'R.Shape(["a"])',
        'R.Tuple(R.Tensor((4,), "float32"))',
        'R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32"))',
    ],
)
@pytest.mark.parametrize("loop", ["scan", "while_loop"])
def test_loops_carry_tensors_of_a_known_type(carried: str, loop: str) -> None:
    step = """
@R.function(private=True)
def holds(h: {carried}, x: R.Tensor((), "float32")):
    return R.less(x, R.const(3.0, "float32"))

@R.function(private=True)
def step(h: {carried}, x: R.Tensor((), "float32")):
    return h, R.add(x, x)
"""
    call = {
        "scan": "R.scan(cls.step, h, xs, carried=1, over=1)",
        "while_loop": "R.while_loop(cls.holds, cls.step, h, R.max(xs), carried=2)",
    }[loop]
    params = f'h: {carried}, xs: R.Tensor((3,), "float32")'
    built = module(f"r = {call}\nreturn r[1]", params, extra=step.format(carried=carried))
    assert refused(built) == "BW401"
