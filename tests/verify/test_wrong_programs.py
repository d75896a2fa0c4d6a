"""Wrong programs are never proved; most are refuted by arguments for which results differ."""

from __future__ import annotations

import pytest

pytest.importorskip("islpy")

from blockwright import ir
from blockwright.testing.check import assert_same_meaning
from blockwright.verify import verify
from blockwright.verify.prove.replay import differs
from tests.verify.pairs import matmul, program, tiled


def require_refuted(before: ir.PrimFunc, after: ir.PrimFunc) -> None:
    """The verdict is a refutation whose counter-example can be run again."""
    verdict = verify(before, after)
    assert verdict.verdict == "refuted", verdict
    assert verdict.counterexample is not None
    assert verdict.counterexample.difference in verdict.why
    assert differs(before, after, verdict.counterexample) == verdict.counterexample.difference


@pytest.mark.parametrize("n", ["20", "n"])
def test_right_tiles_are_proved(n: str) -> None:
    assert verify(matmul(n), tiled(n)).verdict == "proved"


@pytest.mark.parametrize("n", ["20", "n"])
@pytest.mark.parametrize(
    "error",
    [
        {"init": False},
        {"guard": "i0 * 8 + i1 < {n}"},
        {"guard": "k0 * 8 + k1 < {n}"},
        {"guard": "i0 * 8 + i1 < {n} - 1 and k0 * 8 + k1 < {n}"},
        {"column": "vj // 2 * 2"},
        {"shift": " - 1"},
        {"shift": " // 2 * 2"},
    ],
)
def test_an_error_in_a_tile(n: str, error: dict[str, str | bool]) -> None:
    given = {k: v.format(n=n) if isinstance(v, str) else v for k, v in error.items()}
    require_refuted(matmul(n), tiled(n, **given))  # type: ignore[arg-type]


SUM = """
    for i, k in T.grid(8, {k}):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32({start})
            S[vi] = {combine}
"""


def reduction(combine: str = "S[vi] + A[vi, vk]", start: str = "0", k: int = 12) -> ir.PrimFunc:
    return program("A[8, 12]; S[8]", SUM.format(k=k, start=start, combine=combine))


def test_a_reduction_that_misses_a_term_or_starts_elsewhere() -> None:
    require_refuted(reduction(), reduction(k=11))
    require_refuted(reduction(), reduction(start="1"))
    require_refuted(reduction(), reduction("S[vi] - A[vi, vk]"))
    require_refuted(reduction(), reduction("T.max(S[vi], A[vi, vk])"))


BACKWARDS = """
    for i, k in T.grid(8, 12):
        with T.block("S"):
            vi = T.axis.spatial(8, i)
            vk = T.axis.reduce(12, 11 - k)
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
"""
COPIED = """
    for i in range(8):
        with T.block("copy"):
            vi = T.axis.spatial(8, i)
            S[vi] = C[vi]
"""


def test_a_sum_that_begins_late_does_not_begin_with_nothing() -> None:
    """The first steps go on from what was there: a parameter holds something, a new buffer does
    not, although the last step sets all of it."""
    before = program("A[8, 12]; S[8]", BACKWARDS)
    assert verify(before, before).verdict == "proved"
    local = '    C = T.alloc_buffer((8,), "float32")' + BACKWARDS.replace("S[vi]", "C[vi]") + COPIED
    require_refuted(before, program("A[8, 12]; S[8]", local))


def test_a_term_that_is_counted_twice() -> None:
    twice = """
        for i, k, again in T.grid(8, 12, 2):
            with T.block("S"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    S[vi] = T.float32({start})
                S[vi] = {combine}
    """
    after = program("A[8, 12]; S[8]", twice.format(start="0", combine="S[vi] + A[vi, vk]"))
    assert verify(reduction(), after).verdict != "proved"
    largest = twice.format(start='"-inf"', combine="T.max(S[vi], A[vi, vk])")
    same = reduction("T.max(S[vi], A[vi, vk])", '"-inf"')
    assert verify(same, program("A[8, 12]; S[8]", largest)).verdict == "proved"


def test_subtraction_is_no_reduction_to_regroup() -> None:
    backwards = SUM.replace("S[vi] = {combine}", "S[vi] = A[vi, 11 - vk] - S[vi]")
    forwards = SUM.replace("S[vi] = {combine}", "S[vi] = A[vi, vk] - S[vi]")
    pair = [
        program("A[8, 12]; S[8]", text.format(k=12, start="0", combine=""))
        for text in (forwards, backwards)
    ]
    assert verify(*pair).verdict != "proved"


CHAIN = """
    B = T.alloc_buffer((32,), "float32")
    for i in range(32):
        with T.block("B"):
            vi = T.axis.spatial(32, i)
            B[vi] = T.exp(A[vi])
    for i in range(30):
        with T.block("C"):
            vi = T.axis.spatial(30, i)
            C[vi] = B[vi] + B[vi + 2]
"""


def halo(width: int, kind: str = "range", size: int = 32) -> ir.PrimFunc:
    """The producer computed for each tile of its consumer, with a halo of two or less."""
    return program(
        "A[32]; C[30]",
        f"""
        B = T.alloc_buffer(({size},), "float32")
        for t in {kind}(5):
            for h in range({width}):
                with T.block("B"):
                    vi = T.axis.spatial(32, t * 6 + h)
                    B[vi % {size}] = T.exp(A[vi])
            for i in range(6):
                with T.block("C"):
                    vi = T.axis.spatial(30, t * 6 + i)
                    C[vi] = B[vi % {size}] + B[(vi + 2) % {size}]
    """,
    )


def test_a_halo_that_is_too_small_and_a_buffer_that_is_too_small() -> None:
    before = program("A[32]; C[30]", CHAIN)
    assert verify(before, halo(8)).verdict == "proved"
    assert verify(before, halo(8, size=8)).verdict == "proved"
    assert verify(before, halo(7)).verdict == "refuted"
    assert verify(before, halo(8, size=7)).verdict == "refuted"


def test_iterations_that_run_together_may_not_meet() -> None:
    before = program("A[32]; C[30]", CHAIN)
    assert verify(before, halo(8, kind="T.parallel", size=8)).verdict == "proved"  # own buffers
    shared = """
        for t in T.parallel(4):
            for i in range(8):
                with T.block("C"):
                    vt, vi = T.axis.remap("SS", [t, i])
                    C[vi] = A[vi]
    """
    once = (
        "for i in range(8):\n    with T.block('C'):\n        vi = T.axis.spatial(8, i)\n"
        "        C[vi] = A[vi]"
    )
    assert verify(program("A[8]; C[8]", once), program("A[8]; C[8]", shared)).verdict != "proved"
    serial = shared.replace("T.parallel", "range")
    assert verify(program("A[8]; C[8]", once), program("A[8]; C[8]", serial)).verdict == "proved"


def test_a_sum_over_a_parallel_loop_needs_atomic_updates() -> None:
    start = "for i in range(1):\n    with T.block('Z'):\n        S[0] = T.float32(0)\n"
    body = (
        start
        + """for k in {kind}(12):
    with T.block("S"):
        vk = T.axis.reduce(12, k)
        {update}
"""
    )

    def made(kind: str, update: str = "S[0] = S[0] + A[vk]") -> ir.PrimFunc:
        return program("A[12]; S[1]", body.format(kind=kind, update=update))

    assert verify(made("range"), made("T.parallel")).verdict != "proved"
    atomic = made("T.parallel", "T.evaluate(T.atomic_add(S[0], A[vk]))")
    assert verify(made("range"), atomic).verdict == "proved"


def test_order_of_statements_that_depend_on_each_other() -> None:
    before = program("A[32]; C[30]", CHAIN)
    lines = CHAIN.split("    for i")
    after = program("A[32]; C[30]", "    for i".join([lines[0], lines[2], lines[1]]))
    require_refuted(before, after)


def test_an_iterator_outside_of_its_domain() -> None:
    text = (
        "for i in range({n}):\n    with T.block('C'):\n        vi = T.axis.spatial(8, i)\n"
        "        C[vi] = A[vi]"
    )
    before, after = (program("A[10]; C[10]", text.format(n=n)) for n in (8, 9))
    assert verify(before, after).verdict == "refuted"


def test_a_product_with_zero_stays() -> None:
    """0 * x is NaN for some x: nothing may rest on its being 0."""
    before = reduction()
    after = reduction("S[vi] + A[vi, vk] * T.float32(0)")
    assert verify(before, after).verdict == "refuted"
    assert (
        verify(reduction(k=1), reduction("S[vi] + A[vi, 0] * T.float32(0)", k=12)).verdict
        == "refuted"
    )


def test_a_gather_at_other_rows() -> None:
    text = """
        for i, j in T.grid(6, 4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[rows[{row}], vj]
    """
    pair = [
        program("A[9, 4]; rows:int64[6]; C[6, 4]", text.format(row=r)) for r in ("vi", "5 - vi")
    ]
    require_refuted(*pair)
    copied = """
        G = T.alloc_buffer((9, 4), "float32")
        for i, j in T.grid(9, 4):
            with T.block("G"):
                vi, vj = T.axis.remap("SS", [i, j])
                G[vi, vj] = A[vi, vj]
        for j, i in T.grid(4, 6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = G[rows[vi], vj]
    """
    after = program("A[9, 4]; rows:int64[6]; C[6, 4]", copied)
    assert verify(pair[0], after).verdict == "proved"


@pytest.mark.parametrize(("rows", "verdict"), [(9, "proved"), (8, "not proved")])
def test_what_a_position_may_choose_has_been_written(rows: int, verdict: str) -> None:
    """Also where no result depends on the read."""
    text = """
        for i, j in T.grid(6, 4):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[rows[vi], vj]
    """
    unused = f"""
        G = T.alloc_buffer((9, 4), "float32")
        D = T.alloc_buffer((6, 4), "float32")
        for i, j in T.grid({rows}, 4):
            with T.block("G"):
                vi, vj = T.axis.remap("SS", [i, j])
                G[vi, vj] = A[vi, vj]
        for i, j in T.grid(6, 4):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = G[rows[vi], vj]
    """
    heads = "A[9, 4]; rows:int64[6]; C[6, 4]"
    found = verify(program(heads, text), program(heads, unused + text))
    assert (found.verdict == "proved") == (verdict == "proved")
    assert verdict == "proved" or "an unwritten element" in found.why


def test_values_of_an_earlier_visit_are_gone() -> None:
    """A buffer that a block allocates is fresh at each visit of the block."""
    text = """
        for i in range(4):
            with T.block("outer"):
                vi = T.axis.opaque(4, i)
                L = T.alloc_buffer((1,), "float32")
                if vi == 0:
                    L[0] = A[0]
                C[vi] = L[0]
    """.replace("T.axis.opaque", "T.axis.spatial")
    plain = (
        "for i in range(4):\n    with T.block('C'):\n        vi = T.axis.spatial(4, i)\n"
        "        C[vi] = A[0]"
    )
    before, after = (program("A[4]; C[4]", t) for t in (plain, text))
    assert verify(before, after).verdict == "refuted"


def test_extremes_with_their_positions() -> None:
    text = """
        for i, k in T.grid(4, 9):
            with T.block("E"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    E[vi] = T.float32("-inf")
                    P[vi] = T.int64(9223372036854775807)
                taken: T.bool = A[vi, vk] {sign} E[vi] or A[vi, vk] == E[vi] and {at} < P[vi]
                e: T.float32 = T.Select(taken, A[vi, vk], E[vi])
                p: T.int64 = T.Select(taken, {at}, P[vi])
                E[vi] = e
                P[vi] = p
    """
    heads = "A[4, 9]; P:int64[4]; E[4]"
    before = program(heads, text.format(sign=">", at="T.Cast('int64', vk)"))
    turned = text.replace("for i, k in T.grid(4, 9)", "for k, i in T.grid(9, 4)")
    after = program(heads, turned.format(sign=">", at="T.Cast('int64', vk)"))
    assert verify(before, after).verdict == "proved"
    assert (
        verify(before, program(heads, text.format(sign=">", at="T.int64(8) - vk"))).verdict
        != "proved"
    )
    assert (
        verify(before, program(heads, text.format(sign="<", at="T.Cast('int64', vk)"))).verdict
        != "proved"
    )


def test_what_is_proved_holds_on_the_interpreter() -> None:
    for n in ("20", "n"):
        assert_same_meaning(matmul(n), tiled(n), sizes={"n": 13})


TILES = """
for i, j in T.grid(4, 3):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        T.reads(A[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4])
        T.writes(B[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + 4])
        tile = T.match_buffer(A[vi * 4:vi * 4 + 4, vj * 4:vj * 4 + {width}], (4, 4), "float32",
                              {layout})
        for a, b in T.grid(4, 4):
            B[vi * 4 + a, vj * 4 + b] = tile[a, b] + T.float32(1)
"""
PLAIN = """
for i, j in T.grid(16, 12):
    with T.block("B"):
        vi, vj = T.axis.remap("SS", [i, j])
        B[vi, vj] = A[vi, vj] + T.float32(1)
"""


@pytest.mark.parametrize(
    ("width", "layout", "verdict"),
    [
        (4, "offset_factor=1", "proved"),
        (4, "strides=(12, 1), offset_factor=1", "proved"),
        (4, "strides=(24, 2), offset_factor=1", "refuted"),
        (4, "offset_factor=4", "proved"),
        (4, "strides=(12, 1), offset_factor=4", "proved"),
        (4, "offset_factor=8", "refuted"),
        (4, "elem_offset=0", "refuted"),
        (5, "offset_factor=1", "refuted"),
    ],
)
def test_what_a_view_states_holds(width: int, layout: str, verdict: str) -> None:
    parameters = "A[16, 12]; B[16, 12]"
    before = program(parameters, PLAIN)
    after = program(parameters, TILES.format(width=width, layout=layout))
    assert verify(before, after).verdict == verdict


def test_a_vectorized_reduction_has_its_initial_value_before() -> None:
    body = """
for i in range(4):
    for k in {loop}(32):
        with T.block("D"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                D[vi] = T.float32(0)
            D[vi] = D[vi] + A[vi, vk]
"""
    before, after = (
        program("A[4, 32]; D[4]", body.format(loop=loop)) for loop in ("range", "T.vectorized")
    )
    require_refuted(before, after)
