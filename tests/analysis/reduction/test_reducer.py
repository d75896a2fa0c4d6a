"""Reducers: builtin ones keep the laws, declared ones are checked, loop forms recognised."""

from __future__ import annotations

import pytest

from blockwright import ir
from blockwright.analysis import (
    BUILTIN,
    BlockKind,
    BlockScope,
    NoReduction,
    Reduction,
    Tree,
    builtin_name,
    builtin_reducer,
    declare_reducer,
    find_reduction,
    find_update,
    law_broken_by,
    make_reducer,
)
from blockwright.script.ir import from_source
from blockwright.support import IRError

F32, I64 = ir.dtype_of("float32"), ir.dtype_of("int64")


def types_of(name: str) -> list[tuple[str, ...]]:
    if name in ("any", "all"):
        return [("bool",)]
    numbers = ("float16", "float32", "float64", "int8", "uint8", "int32", "int64")
    return [(t,) if BUILTIN[name].arity == 1 else (t, "int64") for t in numbers]


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_reducers_keep_the_laws_for_every_type(name: str) -> None:
    for types in types_of(name):
        reducer = builtin_reducer(name, types)
        assert law_broken_by(reducer) == "", types
        assert builtin_name(reducer) == name


def zero(dtype: str = "float32") -> ir.Expr:
    return ir.const(0, dtype)


BROKEN = {
    "difference": (lambda x, y: x - y, [zero()], "order of its operands"),
    "mean": (lambda x, y: (x + y) * 0.5, [zero()], "grouping of its operands"),
    "sum from one": (lambda x, y: x + y, [ir.const(1, "int32")], "identity changes a value"),
    "maximum from the smallest finite number":
        (ir.maximum, [ir.const(-3.4e38, "float32")], "identity changes a value: for x = -inf"),
    "first maximum, ties by order of operands": (
        lambda x, i, y, j: (ir.select(x >= y, x, y), ir.select(x >= y, i, j)),
        [ir.const(-1000, "int32"), zero("int64")], "order of its operands"),
    "argmax that forgets NaN": (
        lambda x, i, y, j: (
            ir.select(better := ir.logical_or(x > y, ir.logical_and(ir.EQ(x, y), i < j)), x, y),
            ir.select(better, i, j)),
        [ir.const(float("-inf"), "float32"), ir.const(2**63 - 1, "int64")], "nan"),
    "unknown function": (lambda x, y: ir.call("erf", x + y), [zero()], "cannot be checked"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_combination_that_breaks_a_law_is_refused_with_an_example(name: str) -> None:
    combine, identity, words = BROKEN[name]
    with pytest.raises(IRError, match=words) as caught:
        declare_reducer(combine, identity)
    assert caught.value.code == "BW228"


def test_operands_come_flat_or_as_tuples() -> None:
    one, nothing = ir.const(1, F32), ir.const(0, F32)
    flat = declare_reducer(lambda a, b, c, d: (a + c, b * d), [nothing, one])
    tuples = declare_reducer(lambda x, y: (x[0] + y[0], x[1] * y[1]), [nothing, one])
    assert ir.structural_equal(flat, tuples)
    assert not ir.structural_equal(
        flat, declare_reducer(lambda x, y: (x[0] + y[0], x[1] + y[1]), [nothing, nothing])
    )


@pytest.mark.parametrize(("combine", "identity", "words"), [
    (lambda x, y: (x, y), [zero()], "2 components, the identity 1"),
    (lambda x, y: x < y, [zero()], "float32 becomes bool"),
])  # fmt: skip
def test_components_must_fit(combine: object, identity: list[ir.Expr], words: str) -> None:
    with pytest.raises(IRError, match=words):
        make_reducer(combine, identity)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "types", "words"), [
    ("median", ("float32",), "no reducer 'median'"),
    ("argmax", ("float32",), "combines 2 components"),
    ("argmax", ("float32", "float32"), "is an integer"),
    ("any", ("int32",), "combines bool"),
])  # fmt: skip
def test_builtin_reducers_have_types(name: str, types: tuple[str, ...], words: str) -> None:
    with pytest.raises(IRError, match=words) as caught:
        builtin_reducer(name, types)
    assert caught.value.code == "BW228"


# ------------------------------------------------------------------------------- recognised forms
def block_of(body: str, init: str = "B[vi] = T.float32(0)", attr: str = "") -> ir.Block:
    """A block over one spatial and one reduction iterator that updates B, and perhaps I and D."""
    lines = [f"            {line}" for line in body.strip().splitlines()]
    starts = [f"                {line}" for line in init.strip().splitlines()]
    text = "\n".join(
        [
            "@T.prim_func",
            'def main(A: T.Buffer((4, 8), "float32"), N: T.Buffer((4, 8), "int32"),',
            '         B: T.Buffer((4,), "float32"), D: T.Buffer((4,), "int32"),',
            '         P: T.Buffer((4,), "int64")):',
            "    for i, k in T.grid(4, 8):",
            '        with T.block("B"):',
            '            vi, vk = T.axis.remap("SR", [i, k])',
            *([f"            {attr}"] if attr else []),
            *(["            with T.init():", *starts] if init else []),
            *lines,
        ]
    )
    func = from_source(text)
    assert isinstance(func, ir.PrimFunc)
    return ir.blocks(func.body)[1]


LOWEST = 'D[vi] = T.int32(-2147483648)\nP[vi] = T.int64(9223372036854775807)'  # fmt: skip
FORMS = {
    "sum, element first": ("B[vi] = B[vi] + A[vi, vk]", "B[vi] = T.float32(0)", "sum"),
    "sum, element last": ("B[vi] = A[vi, vk] * 2.0 + B[vi]", "B[vi] = T.float32(0)", "sum"),
    "through a let": ("x: T.float32 = A[vi, vk] + B[vi]\nB[vi] = x", "B[vi] = T.float32(0)", "sum"),
    "maximum from anywhere": ("B[vi] = T.max(A[vi, vk], B[vi])", "B[vi] = T.float32(7)", "max"),
    "argmax, ties by position": ("""
better: T.bool = N[vi, vk] > D[vi] or N[vi, vk] == D[vi] and T.int64(vk) < P[vi]
d: T.int32 = T.Select(better, N[vi, vk], D[vi])
p: T.int64 = T.Select(better, T.int64(vk), P[vi])
D[vi] = d
P[vi] = p""", LOWEST, "argmax"),
    "argmax, sides and comparisons turned, position stored first": ("""
keep: T.bool = P[vi] < T.int64(vk) and D[vi] == N[vi, vk] or N[vi, vk] < D[vi]
d: T.int32 = T.if_then_else(keep, D[vi], N[vi, vk])
p: T.int64 = T.Select(keep, P[vi], T.int64(vk))
P[vi] = p
D[vi] = d""", LOWEST, "argmax"),
    "argmin": ("""
better: T.bool = N[vi, vk] < D[vi] or N[vi, vk] == D[vi] and T.int64(vk) < P[vi]
d: T.int32 = T.Select(better, N[vi, vk], D[vi])
P[vi] = T.Select(better, T.int64(vk), P[vi])
D[vi] = d""", LOWEST, "argmin"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_loop_forms_are_recognised(name: str) -> None:
    body, init, wanted = FORMS[name]
    found = find_reduction(block_of(body, init))
    assert isinstance(found, Reduction), found
    assert found.name == wanted
    names = [e.buffer.name for e in found.elements]
    assert names == (["D", "P"] if wanted.startswith("arg") else ["B"])
    assert len(found.terms) == len(found.initial) == len(names)


MINUS = "B[vi] = B[vi] - A[vi, vk]"
OTHERS = {
    "difference": (MINUS, "B[vi] = T.float32(0)", "", "not a sum, product"),
    "term reads the element": (
        "B[vi] = B[vi] + A[vi, vk] * B[vi]", "B[vi] = T.float32(0)", "", "a term free of it"),
    "another element": (
        "B[vi] = B[3 - vi] + A[vi, vk]", "B[vi] = T.float32(0)", "", "reads other elements of B"),
    "initial value elsewhere": (
        "B[vi] = B[vi] + A[vi, vk]", "B[3 - vi] = T.float32(0)", "", "other than the updated one"),
    "too few initial values": (
        FORMS["argmin"][0], "D[vi] = T.int32(0)", "", "one initial value for each"),
    "initial value of the step": (
        "B[vi] = B[vi] + A[vi, vk]", "B[vi] = A[vi, vk]", "", "depends on a reduction iterator"),
    "a branch": ("""
if N[vi, vk] > D[vi]:
    D[vi] = N[vi, vk]
    P[vi] = T.int64(vk)""", LOWEST, "", "more than lets and stores"),
    "old values lost before they are used": ("""
D[vi] = T.max(N[vi, vk], D[vi])
P[vi] = T.Select(N[vi, vk] > D[vi], T.int64(vk), P[vi])""", LOWEST, "", "not an argmin or argmax"),
    "not the declared step": (
        MINUS, "B[vi] = T.float32(0)",
        'T.block_attr({"reducer": T.comm_reducer(lambda x, y: x + y, [T.float32(0)])})',
        "does not match the reducer that the block declares"),
    "no reducer": (
        MINUS, "B[vi] = T.float32(0)", 'T.block_attr({"reducer": 3})', "is not a comm_reducer"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_bodies_are_not_with_the_reason(name: str) -> None:
    body, init, attr, words = OTHERS[name]
    found = find_reduction(block_of(body, init, attr))
    assert isinstance(found, NoReduction)
    assert words in found.why


def test_an_untrue_declaration_is_refused_however_it_came_into_the_program() -> None:
    block = block_of(MINUS)
    reducer = make_reducer(lambda x, y: x - y, [zero()])
    found = find_reduction(block.replace(annotations={"reducer": reducer}))
    assert isinstance(found, NoReduction)
    assert "not commutative and associative" in found.why


def test_an_update_needs_no_initial_value() -> None:
    block = block_of("B[vi] = B[vi] + A[vi, vk]", init="")
    assert isinstance(find_reduction(block), NoReduction)
    found = find_update(block)
    assert isinstance(found, Reduction)
    assert found.initial == ()


@pytest.mark.parametrize(("body", "init", "restart", "neutral"), [
    ("B[vi] = B[vi] + A[vi, vk]", "0", True, True),
    ("B[vi] = B[vi] + A[vi, vk]", "1", False, False),
    ("B[vi] = T.min(B[vi], A[vi, vk])", "1", True, False),
    ("B[vi] = B[vi] * A[vi, vk]", "0", True, False),
    ("B[vi] = B[vi] * A[vi, vk]", "1", True, True),
])  # fmt: skip
def test_what_an_initial_value_may_do(body: str, init: str, restart: bool, neutral: bool) -> None:
    """A minimum may begin again from any value; only a neutral one changes nothing."""
    found = find_reduction(block_of(body, f"B[vi] = T.float32({init})"))
    assert isinstance(found, Reduction)
    assert (found.may_restart, found.starts_neutral) == (restart, neutral)


PAIR = """
@T.prim_func
def main(A: T.Buffer((4, 8), "int32"), D: T.Buffer((4,), "int32"), P: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 8):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = 0
                P[vi] = 0
            D[vi] = D[vi] + A[vi, vk]
            P[vi] = P[vi] + A[vi, vk] * A[vi, vk]
"""


def test_a_block_with_several_stores_is_a_reduction_of_all_of_them() -> None:
    func = from_source(PAIR)
    assert isinstance(func, ir.PrimFunc)
    scope = BlockScope(Tree(func), func.root)
    (block,) = scope.blocks
    assert scope.kind(block) is BlockKind.REDUCTION
    assert [r.buffer.name for r in block.writes] == ["D", "P"]
    assert [r.buffer.name for r in block.reads] == ["A"]


def test_an_element_without_initial_value_is_read_back_and_no_reduction() -> None:
    func = from_source(PAIR.replace("                P[vi] = 0\n", ""))
    assert isinstance(func, ir.PrimFunc)
    scope = BlockScope(Tree(func), func.root)
    (block,) = scope.blocks
    assert "P" in [r.buffer.name for r in block.reads]
    assert scope.kind(block) is BlockKind.OTHER
    assert "P, which it does not initialize" in scope.why_other(block)
