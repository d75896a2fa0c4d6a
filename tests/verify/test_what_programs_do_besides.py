"""Bound values, assertions, empty reductions, operands that may fail, lanes, attributes: wrong
programs that differ in them are not proved, and right ones are."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("islpy")

import blockwright as bw
from blockwright import ir
from blockwright.ir.attributes import FP_CONTRACT, LOWER_BOUND, NNAN, NUM_OUTPUTS, UPPER_BOUND
from blockwright.verify import verify
from tests.verify.pairs import program


def block(body: str, n: str = "8", kind: str = "range") -> str:
    """A block with a spatial iterator `vi`."""
    head = f"for i in {kind}({n}):\n    with T.block('b'):\n        vi = T.axis.spatial({n}, i)\n"
    return head + textwrap.indent(textwrap.dedent(body).strip(), " " * 8)


def verdicts(parameters: str, first: str, second: str, sizes: str = "") -> tuple[str, str]:
    """The verdicts on two programs, both ways."""
    a, b = (program(parameters, text, sizes) for text in (first, second))
    return verify(a, b).verdict, verify(b, a).verdict


# ------------------------------------------------------------------------------------- bound values
CHANGES = {
    "a store": "A[vi] = A[vi] + T.float32(1)",
    "an atomic update": "T.evaluate(T.atomic_add(A[vi], T.float32(1)))",
    "a loop": "for k in range(1):\n    A[vi] = T.float32(7)",
    "a condition": "if vi > 2:\n    A[vi] = T.float32(7)",
    "a view": (
        "with T.block('in'):\n    D = T.match_buffer(A[0:8], (8,))\n    D[vi] = T.float32(7)"
    ),
    "a view of a view": (
        "with T.block('in'):\n    D = T.match_buffer(A[0:8], (8,))\n    with T.block('in2'):\n"
        "        E = T.match_buffer(D[0:8], (8,))\n        E[vi] = T.float32(7)"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_value_that_is_read_before_its_element_changes(change: str) -> None:
    early = block(f"v: T.float32 = A[vi]\n{CHANGES[change]}\nB[vi] = v")
    late = block(f"{CHANGES[change]}\nB[vi] = A[vi]")
    assert "proved" not in verdicts("A[8]; B[8]", early, late)


def test_a_value_of_another_buffer_stays() -> None:
    early = block("v: T.float32 = A[vi]\nT.evaluate(T.atomic_add(C[vi], v))\nB[vi] = v")
    late = block("T.evaluate(T.atomic_add(C[vi], A[vi]))\nB[vi] = A[vi]")
    assert verdicts("A[8]; B[8]; C[8]", early, late) == ("proved", "proved")


def test_an_atomic_update_is_no_plain_read_of_the_value_before_it() -> None:
    early = block("v: T.float32 = A[vi]\nT.evaluate(T.atomic_add(A[vi], T.float32(1)))\nB[vi] = v")
    late = block("A[vi] = A[vi] + T.float32(1)\nB[vi] = A[vi]")
    assert "proved" not in verdicts("A[8]; B[8]", early, late)


def test_a_condition_on_a_view_of_what_changes_under_it() -> None:
    text = """
        with T.block("o"):
            D = T.match_buffer(A[0:8], (8,))
            if D[0] > T.float32(0):
                {0}
                {1}
    """
    lines = "A[0] = T.float32(-1)", "B[0] = T.float32(5)"
    pair = text.format(*lines), text.format(*lines[::-1])
    assert "refuted" not in verdicts("A[8]; B[8]", *pair)
    wrong = text.format(*lines), text.format("A[0] = T.float32(-1)", "B[0] = T.float32(4)")
    assert "proved" not in verdicts("A[8]; B[8]", *wrong)


@pytest.mark.parametrize(
    "unused", ["v: T.float32 = A[vi + 1]", "v: T.int32 = I[vi] // J[vi]", "v: T.float32 = A[I[vi]]"]
)
def test_a_value_that_nobody_uses_is_computed(unused: str) -> None:
    plain, more = block("B[vi] = A[vi]"), block(f"{unused}\nB[vi] = A[vi]")
    there, back = verdicts("A[8]; B[8]; I:int32[8]; J:int32[8]", plain, more)
    assert there != "proved"
    assert back == "proved" or "vi + 1" in unused


def test_a_view_of_another_element_type() -> None:
    punned = """
        with T.block("o"):
            A[0] = T.int8(-1)
            with T.block("i"):
                D = T.match_buffer(A[0:8], (8,), "uint8")
                B[0] = T.Cast("int32", D[0])
    """
    plain = 'with T.block("o"):\n    A[0] = T.int8(-1)\n    B[0] = -1'
    assert "proved" not in verdicts("A:int8[8]; B:int32[8]", punned, plain)


def test_a_buffer_that_two_blocks_allocate_is_two_buffers() -> None:
    once = program(
        "A[8]; B[8]",
        """
        with T.block("both"):
            S = T.alloc_buffer((8,), "float32")
            with T.block("one"):
                for i in range(8):
                    S[i] = A[i]
            with T.block("other"):
                for i in range(8):
                    B[i] = S[i]
        """,
    )
    both, one, other = (
        next(b for b in ir.blocks(once.body) if b.name == name) for name in ("both", "one", "other")
    )
    alloc = both.alloc_buffers
    parts = {one: one.replace(alloc_buffers=alloc), other: other.replace(alloc_buffers=alloc)}

    class Move(ir.Mutator):
        def rewrite_Block(self, node: ir.Block) -> ir.Block:
            return parts.get(node) or self.descend(node).replace(alloc_buffers=())

    twice = once.replace(body=Move()(once.body))
    assert verify(once, twice).verdict != "proved"


# --------------------------------------------------------------------------------------- assertions
@pytest.mark.parametrize(
    "added", ["assert n < 5, 'no'", "if n > 10:\n    assert n < 5, 'no'", "assert n != 3, 'no'"]
)
def test_an_assertion_of_one_program(added: str) -> None:
    plain = block("B[vi] = A[vi]", "n")
    assert "proved" not in verdicts("A[n]; B[n]", plain, f"{plain}\n{added}", "n")


def test_assertions_that_fail_for_the_same_sizes() -> None:
    plain = block("B[vi] = A[vi]", "n")
    first = f"{plain}\nif n > 10:\n    assert n < 5, 'no'"
    second = f"assert n <= 10, 'no'\n{plain}"
    third = f"{plain}\nassert n < 11, 'no'"
    assert verdicts("A[n]; B[n]", first, third, "n") == ("proved", "proved")
    never = f"{plain}\nassert n > 0, 'no'"  # sizes of 0 are not covered
    assert verdicts("A[n]; B[n]", plain, never, "n") == ("proved", "proved")
    assert "refuted" not in verdicts("A[n]; B[n]", first, second, "n")


# --------------------------------------------------------------------------------- empty reductions
EMPTY = """
    for i, k in T.grid(n, n - {gap}):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            vk = T.axis.reduce(n - {gap}, k)
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + A[vi, vk]
"""
BY_HAND = """
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            for k in range(n - {gap}):
                if k == 0:
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, k]
"""


@pytest.mark.parametrize(("gap", "proved"), [(0, True), (1, False), (2, False)])
def test_a_reduction_over_no_elements_has_its_initial_value(gap: int, proved: bool) -> None:
    pair = EMPTY.format(gap=gap), BY_HAND.format(gap=gap)
    found = verdicts("A[n, n]; C[n]", *pair, "n")
    assert (found == ("proved", "proved")) if proved else "proved" not in found


@pytest.mark.parametrize("bound", [1, 2])
def test_a_declared_bound_decides_if_a_reduction_may_be_empty(bound: int) -> None:
    pair = [
        program("A[n, n]; C[n]", text.format(gap=1), "n").replace(attrs={LOWER_BOUND: {"n": bound}})
        for text in (EMPTY, BY_HAND)
    ]
    assert (verify(*pair).verdict == "proved") == (bound == 2)


def test_steps_on_a_reduction_that_may_be_empty_are_proved() -> None:
    for step in ("decompose_reduction", "rfactor", "fuse", "reorder", "split"):
        sch = bw.Schedule(program("A[n, n]; C[n]", EMPTY.format(gap=1), "n"), verify="prove")
        c = sch.get_block("C")
        i, k = sch.get_loops(c)
        if step == "decompose_reduction":
            sch.decompose_reduction(c, k)
        elif step == "rfactor":
            sch.rfactor(sch.split(k, [None, 4])[1], 0)
        elif step == "reorder":
            sch.reorder(k, i)
        elif step == "split":
            sch.split(k, [None, 4])
        else:
            sch.parallel(i)


# ---------------------------------------------------------------------------------- races and lanes
SUM = (
    "for k in {kind}(4):\n    with T.block('b'):\n        vk = T.axis.{it}(4, k)\n        {update}"
)


def test_only_reduction_iterators_combine_lanes() -> None:
    serial = SUM.format(kind="range", it="reduce", update="C[0] = C[0] + A[vk]")
    combined = SUM.format(kind="T.vectorized", it="reduce", update="C[0] = C[0] + A[vk]")
    spatial = SUM.format(kind="T.vectorized", it="spatial", update="C[0] = C[0] + A[vk]")
    moving = SUM.format(kind="T.vectorized", it="reduce", update="C[vk // 2] = C[vk // 2] + A[vk]")
    alone = moving.replace("T.vectorized", "range")
    assert verdicts("A[4]; C[4]", serial, combined)[0] == "proved"
    assert verdicts("A[4]; C[4]", serial, spatial)[0] != "proved"
    assert verdicts("A[4]; C[4]", alone, moving)[0] != "proved"


@pytest.mark.parametrize("to", ["T.broadcast(0, 4)", "T.ramp(0, 0, 4)"])
def test_lanes_of_one_store_do_not_combine(to: str) -> None:
    serial = SUM.format(kind="range", it="reduce", update="C[0] = C[0] + A[vk]")
    vector = f"with T.block('b'):\n    C[{to}] = C[{to}] + A[T.ramp(0, 1, 4)]"
    assert "proved" not in verdicts("A[4]; C[4]", serial, vector)


@pytest.mark.parametrize(
    ("update", "proved"),
    [
        ("T.evaluate(T.atomic_add(A[vi], A[vi + 1]))", False),
        ("T.evaluate(T.atomic_add(A[vi], B[vi + 1]))", True),
        (
            "T.evaluate(T.atomic_add(A[vi], B[vi + 1]))\n"
            "T.evaluate(T.atomic_add(B[vi], A[vi + 1]))",
            False,
        ),
        ("T.evaluate(T.atomic_add(A[0], B[vi]))", True),
        ("T.evaluate(T.atomic_add(A[0], B[vi]))\nB[vi] = A[vi + 1]", True),
        ("T.evaluate(T.atomic_add(A[0], B[vi]))\nB[vi] = A[vi]", False),
    ],
)
def test_operands_of_an_atomic_update_are_plain_reads(update: str, proved: bool) -> None:
    serial, parallel = (block(update, kind=kind) for kind in ("range", "T.parallel"))
    assert (verdicts("A[9]; B[9]", serial, parallel)[0] == "proved") == proved


# --------------------------------------------------------------------------- operands that may fail
LAZY, EAGER = "T.if_then_else", "T.Select"
GUARDED = [
    "{0}(J[vi] != 0, I[vi] // J[vi], 0)",
    "{0}(J[vi] != 0, I[vi] % J[vi], 0)",
    "{0}(J[vi] != 0, T.truncdiv(I[vi], J[vi]), 0)",
    "{0}(J[vi] >= 0 and J[vi] < 8, I[J[vi]], 0)",
    "{0}(J[vi] < 8, T.checked_index(J[vi], 8), 0)",
    "{0}(I[vi] > 0, {0}(J[vi] != 0, I[vi] // J[vi], 0), 1)",
]


@pytest.mark.parametrize("value", GUARDED)
def test_a_choice_that_evaluates_both_branches(value: str) -> None:
    lazy, eager = (block(f"K[vi] = {value.format(name)}") for name in (LAZY, EAGER))
    parameters = "I:int32[8]; J:int32[8]; K:int32[8]"
    assert verdicts(parameters, lazy, eager)[0] != "proved"
    assert verdicts(parameters, eager, lazy)[0] == "proved"


def test_a_division_that_the_program_before_does_not_have() -> None:
    parameters = "I:int32[8]; J:int32[8]; K:int32[8]"
    plain = block("K[vi] = I[vi]")
    dead = 'D = T.alloc_buffer((8,), "int32")\n' + block("K[vi] = I[vi]\nD[vi] = I[vi] // J[vi]")
    assert verdicts(parameters, plain, dead) != ("proved", "proved")
    assert verdicts(parameters, dead, plain)[0] == "proved"
    constant = dead.replace("J[vi]", "3")
    assert verdicts(parameters, plain, constant) == ("proved", "proved")


# -------------------------------------------------------------------------- rounding and attributes
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("float32", 'T.Cast("float32", T.bfloat16(0.1))', "T.float32(0.1)"),
        ("float64", 'T.Cast("float64", T.float32(0.1))', "T.float64(0.1)"),
        ("bfloat16", 'T.Cast("bfloat16", T.int32(33685505))', "T.bfloat16(33554432.0)"),
    ],
)
def test_constants_are_rounded_to_their_type(kind: str, first: str, second: str) -> None:
    pair = block(f"B[vi] = {first}"), block(f"B[vi] = {second}")
    assert "proved" not in verdicts(f"B:{kind}[8]", *pair)


def test_a_type_without_infinities_has_no_infinite_identity() -> None:
    kind = "float8_e4m3fn"
    first = block(f"B[vi] = T.max(B[vi], T.{kind}('-inf'))")
    assert "proved" not in verdicts(f"B:{kind}[8]", first, block("B[vi] = B[vi]"))


@pytest.mark.parametrize(
    ("before", "after", "proved"),
    [
        ({FP_CONTRACT: "off"}, {}, False),
        ({}, {FP_CONTRACT: "off"}, True),
        ({FP_CONTRACT: "off"}, {FP_CONTRACT: "off"}, True),
        ({}, {NNAN: True}, False),
        ({NNAN: True}, {}, True),
        ({NUM_OUTPUTS: 1}, {NUM_OUTPUTS: 2}, False),
        ({UPPER_BOUND: {"n": 4}}, {UPPER_BOUND: {"n": 4}}, True),
        ({UPPER_BOUND: {"n": 4}}, {UPPER_BOUND: {"m": 4}}, False),
    ],
)
def test_attributes_that_change_the_meaning(
    before: dict[str, object], after: dict[str, object], proved: bool
) -> None:
    text = block("B[vi] = A[vi] * A[vi] + B[vi]", "n")
    first = program("A[n]; B[n]; C[m]", text, "n m").replace(attrs=before)
    second = program("A[n]; B[n]; C[m]", block("B[vi] = B[vi] + A[vi] * A[vi]", "n"), "n m")
    assert (verify(first, second.replace(attrs=after)).verdict == "proved") == proved


def test_bounds_belong_to_sizes_and_not_to_names() -> None:
    texts = "A[n]; B[m]", "A[m]; B[n]"
    pair = [
        program(head, "A[0] = T.float32(1)", "n m").replace(attrs={UPPER_BOUND: {"n": 4}})
        for head in texts
    ]
    assert verify(*pair).verdict != "proved"


# -------------------------------------------------------------------------- programs without blocks
def test_programs_without_blocks() -> None:
    forth, back = (f"for k in range(8):\n    C[{at}] = A[{at}]" for at in ("k", "7 - k"))
    other = "for k in range(8):\n    C[k] = A[7 - k]"
    assert verdicts("A[8]; C[8]", forth, back) == ("proved", "proved")
    assert "proved" not in verdicts("A[8]; C[8]", forth, other)
    bound = "v: T.float32 = A[0]\nC[0] = v"
    assert verdicts("A[8]; C[8]", bound, "C[0] = A[0]") == ("proved", "proved")
    scan = "for k in range(7):\n    A[k + 1] = A[k]"
    assert (
        verify(*(program("A[8]", t) for t in (scan, f"{scan}\nA[0] = A[0]"))).verdict != "refuted"
    )
