"""What `bw.validate` says about parallel loops, atomics, kernels, threads and their memory."""

from __future__ import annotations

import pytest

import blockwright as bw
from blockwright import ir

GPU = "cuda-sm_90a"


def program(body: str, n: int = 32, allocate: str = "pass") -> ir.PrimFunc:
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    return bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer(({n}, {n}), "float32"), B: T.Buffer(({n}, {n}), "float32")):
    {allocate}
{lines}
""")


def problems(func: ir.PrimFunc, target: str | None = None) -> list[tuple[str, str]]:
    """(code, message) of every problem; none for a valid program."""
    try:
        bw.validate(func, target)
    except bw.ValidationError as error:
        return [(d.code, d.message) for d in error.diagnostics]
    return []


def codes(func: ir.PrimFunc, target: str | None = None) -> list[str]:
    return [code for code, _ in problems(func, target)]


# ------------------------------------------------------------------------------ at the same time
REDUCTION = """
for i in range(32):
    with T.block("first"):
        vi = T.axis.spatial(32, i)
        B[vi, 0] = T.float32(0)
for {loops}:
    with T.block("B"):
        vi, vk = T.axis.remap("SR", [i, k])
        {update}
"""
PLAIN, ATOMIC = "B[vi, 0] = B[vi, 0] + A[vi, vk]", "T.atomic_add(B[vi, 0], A[vi, vk])"
PARALLEL_TERMS = "k in T.parallel(32):\n    for i in range(32)"
BOUND_TERMS = 'k in T.thread_binding(32, thread="blockIdx.x"):\n    for i in range(32)'
SHARED_TERMS = 'k in T.thread_binding(32, thread="threadIdx.x"):\n    for i in range(32)'


def reduction(loops: str, update: str) -> ir.PrimFunc:
    text = REDUCTION.format(loops=loops, update=update)
    if "\n" in loops:  # the block stands one level deeper
        head, tail = text.split('    with T.block("B")')
        text = head + '        with T.block("B")' + tail.replace("\n    ", "\n        ")
    return program(text)


@pytest.mark.parametrize("loops", [PARALLEL_TERMS, BOUND_TERMS])
def test_a_reduction_under_a_parallel_loop_must_be_atomic(loops: str) -> None:
    ((code, text),) = problems(reduction(loops, PLAIN))
    assert code == "BW240"
    assert "reduction iterator vk" in text
    assert codes(reduction(loops, ATOMIC)) == []


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (PLAIN, ""),
        (PLAIN.replace("+", "-"), "not a reduction that threads can share"),
        ("B[vi, 0] = B[vi, 0] * A[vi, vk] + A[vi, vk]", "not a reduction that threads can share"),
    ],
)
def test_threads_combine_the_terms_of_a_commutative_reducer(update: str, why: str) -> None:
    found = problems(reduction(SHARED_TERMS, update))
    assert [code for code, _ in found] == (["BW240"] if why else [])
    assert all(why in text for _, text in found)


@pytest.mark.parametrize(("scope", "found"), [("global", []), ("shared", []), ("local", ["BW240"])])
def test_threads_combine_in_memory_that_all_of_them_see(scope: str, found: list[str]) -> None:
    text = """
for k in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("C"):
        vk = T.axis.reduce(32, k)
        with T.init():
            C[0] = T.float32(0)
        C[0] = C[0] + A[0, vk]
for k in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("B"):
        vk = T.axis.spatial(32, k)
        B[0, vk] = C[0]
"""
    assert (
        codes(program(text, allocate=f'C = T.alloc_buffer((1,), "float32", scope="{scope}")'))
        == found
    )


READ_EARLY = """
for i in range(32):
    for k in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi, 0] = T.float32(0)
            B[vi, 0] = B[vi, 0] + A[vi, vk]
        with T.block("C"):
            vi, vk = T.axis.remap("SS", [i, k])
            C[vi, vk] = B[vi, 0]
"""


def test_results_are_not_read_while_threads_combine() -> None:
    found = problems(program(READ_EARLY, allocate='C = T.alloc_buffer((32, 32), "float32")'))
    assert "BW240" in [code for code, _ in found]
    assert any("still combine their terms" in text for _, text in found)


def test_a_parallel_loop_over_the_elements_is_fine() -> None:
    assert codes(reduction("i in T.parallel(32):\n    for k in range(32)", PLAIN)) == []


@pytest.mark.parametrize(
    ("index", "met"),
    [("vi, 0", None), ("0, 0", "B[0, 0]"), ("vi // 2, 0", "B[0, 0]"), ("(vi + 1) % 32, 0", None)],
)
def test_parallel_iterations_write_different_elements(index: str, met: str | None) -> None:
    found = problems(program(f"""
for i in T.parallel(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        B[{index}] = A[vi, 0]
"""))  # fmt: skip
    assert [code for code, _ in found] == ([] if met is None else ["BW240"])
    assert met is None or met in found[0][1]


def test_no_parallel_iteration_reads_what_another_writes() -> None:
    scan = """
for i in T.{kind}(31):
    with T.block("B"):
        vi = T.axis.spatial(31, i)
        B[vi + 1, 0] = B[vi, 0] + A[vi, 0]
"""
    assert codes(program(scan.format(kind="serial"))) == []
    assert codes(program(scan.format(kind="parallel"))) == ["BW240"]


@pytest.mark.parametrize("when", ["t == 0", "t == 3", "t == 5", "t >= 2 and t < 4"])
def test_iterations_meet_in_any_iteration_of_the_loops_around(when: str) -> None:
    """Neither the first nor the last one has to be it."""
    func = program(f"""
for t in range(9):
    for i in T.parallel(4):
        with T.block("B"):
            vt, vi = T.axis.remap("SS", [t, i])
            T.where({when})
            B[vt, 0] = A[vt, vi]
""")
    assert codes(func) == ["BW240"]


@pytest.mark.parametrize(
    "update",
    ["T.atomic_add(B[0, 0], A[vi, 0])", "B[vi, 2] = T.atomic_add(B[0, 0], A[vi, 0])"],
)
def test_atomic_updates_do_not_go_with_plain_accesses(update: str) -> None:
    func = program(f"""
for i in T.parallel(32):
    with T.block("add"):
        vi = T.axis.spatial(32, i)
        {update}
    with T.block("look"):
        vi = T.axis.spatial(32, i)
        B[vi, 1] = B[0, 0]
""")
    assert codes(func) == ["BW240"]


def test_a_buffer_of_its_own_for_each_iteration() -> None:
    """Halos overlap between iterations; each has its own copy."""
    func = program("""
for i in T.parallel(8):
    for j in range(5):
        with T.block("C"):
            vi = T.axis.spatial(32, i * 4 + j)
            T.where(i * 4 + j < 32)
            C[vi] = A[vi, 0]
    for j in range(4):
        with T.block("B"):
            vi = T.axis.spatial(32, i * 4 + j)
            B[vi, 0] = C[vi] + C[T.min(vi + 1, 31)]
""", allocate='C = T.alloc_buffer((32,), "float32")')  # fmt: skip
    assert codes(func) == []


# ------------------------------------------------------------------------------ atomics
@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("T.atomic_add(B[0, 0], 1)", "combines a int32"),
        ("T.atomic_and(B[0, 0], T.float32(1))", "only integers and booleans"),
        ("T.atomic_add(A[0, 0] + T.float32(1), T.float32(1))", "takes an element"),
        ("T.atomic_add(L[0], T.float32(1))", "which no other thread sees"),
    ],
)
def test_atomic_updates_that_have_no_meaning(call: str, why: str) -> None:
    found = problems(program(f"""
with T.block("B"):
    T.reads(A[0, 0], B[0, 0], L[0])
    T.writes(B[0, 0], L[0])
    {call}
""", allocate='L = T.alloc_buffer((1,), "float32", scope="local")'))  # fmt: skip
    assert found[0][0] == "BW217"
    assert why in found[0][1]


# ------------------------------------------------------------------------------ kernels
KERNEL = """
for bx in T.thread_binding({blocks}, thread="blockIdx.x"):
    for tx in T.thread_binding({threads}, thread="threadIdx.x"):
        with T.block("C"):
            vi = T.axis.spatial({blocks}, bx)
            vj = T.axis.spatial({threads}, tx)
            C[vi, vj] = A[0, 0]
    for tx in T.thread_binding({others}, thread="threadIdx.x"):
        with T.block("B"):
            vi = T.axis.spatial({blocks}, bx)
            vj = T.axis.spatial({others}, tx)
            B[0, 0] = C[vi, vj]
"""


def kernel(
    blocks: object = 4,
    threads: int = 32,
    others: int = 32,
    scope: str = "shared",
    shape: str = "4, 2048",
) -> ir.PrimFunc:
    """Two phases of one kernel; races on B are beside the point."""
    text = KERNEL.format(blocks=blocks, threads=threads, others=others)
    text = text.replace("B[0, 0] = C[vi, vj]", "T.atomic_max(B[0, 0], C[vi, vj])")
    return program(text, allocate=f'C = T.alloc_buffer(({shape}), "float32", scope="{scope}")')


def test_loops_on_one_axis_of_a_kernel_have_one_extent() -> None:
    assert codes(kernel(), GPU) == []
    found = problems(kernel(others=16))
    assert [code for code, _ in found] == ["BW236"]
    assert "32 and 16" in found[0][1]


def test_launches_stay_within_the_limits_of_the_machine() -> None:
    assert codes(kernel(threads=1024, others=1024), GPU) == []
    found = problems(kernel(threads=2048, others=2048), GPU)
    assert {code for code, _ in found} == {"BW237"}
    assert "2048; the machine allows 1024" in found[0][1]
    assert codes(kernel(threads=2048, others=2048)) == []  # no machine, no limit
    assert codes(kernel(blocks=2**31, shape="2147483648, 32"), GPU) == ["BW237"]


def test_the_threads_of_all_axes_count_together() -> None:
    text = """
for ty in T.thread_binding(64, thread="threadIdx.y"):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("B"):
            vy, vx = T.axis.remap("SS", [ty, tx])
            B[vy // 2, vx] = A[vy // 2, vx]
"""
    fewer = text.replace("[vy // 2, vx] =", "[vy, vx] =").replace("(64", "(32")
    assert problems(program(fewer), GPU) == []
    found = problems(program(text), GPU)
    assert any("2048 threads" in text for _, text in found)


def test_shared_memory_is_counted_per_block_and_as_far_as_it_is_used() -> None:
    """C is as large as all blocks together; one block uses one row of it."""
    assert codes(kernel(blocks=30_000, threads=1024, others=1024, shape="30000, 1024"), GPU) == []
    big = program("""
for bx in T.thread_binding(4, thread="blockIdx.x"):
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        for k in range(2048):
            with T.block("C"):
                vi, vk = T.axis.remap("SS", [tx, k])
                C[vi, vk] = A[0, 0]
        with T.block("B"):
            vi = T.axis.spatial(32, tx)
            T.atomic_max(B[vi, 0], C[31 - vi, 5])
""", allocate='C = T.alloc_buffer((32, 2048), "float32", scope="shared.dyn")')  # fmt: skip
    found = [text for code, text in problems(big, GPU) if code == "BW237"]
    assert "262144 bytes of shared memory" in found[0]


# ------------------------------------------------------------------------------ who sees what
@pytest.mark.parametrize(
    ("scope", "index", "expected"),
    [
        ("shared", "31 - vj", []),
        ("local", "vj", []),  # C[vi, vj] is written and read by the same thread
        ("local", "31 - vj", ["BW238"]),
        ("warp", "31 - vj", []),
        ("global", "31 - vj", []),
    ],
)
def test_threads_see_what_their_memory_shares(scope: str, index: str, expected: list[str]) -> None:
    text = KERNEL.format(blocks=4, threads=32, others=32)
    text = text.replace("B[0, 0] = C[vi, vj]", f"B[vi, vj] = C[vi, {index}]")
    func = program(text, allocate=f'C = T.alloc_buffer((4, 32), "float32", scope="{scope}")')
    assert codes(func, GPU) == expected


@pytest.mark.parametrize(
    ("reader", "expected"),
    [
        ('t in T.thread_binding(32, thread="threadIdx.x")', []),
        ('t in T.thread_binding(32, thread="threadIdx.y")', ["BW238"]),
        ("t in range(32)", ["BW238"]),  # every thread reads what all of them wrote
    ],
)
def test_what_runs_on_all_threads_of_an_axis_sees_one_copy(
    reader: str, expected: list[str]
) -> None:
    func = program(
        f"""
for b in T.thread_binding(32, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("L"):
            vb, vt = T.axis.remap("SS", [b, t])
            L[vb, vt] = A[vb, vt]
    for {reader}:
        with T.block("B"):
            vb, vt = T.axis.remap("SS", [b, t])
            B[vb, vt] = L[vb, vt]
""",
        allocate='L = T.alloc_buffer((32, 32), "float32", scope="local")',
    )
    assert codes(func) == expected


@pytest.mark.parametrize("scope", ["shared", "global"])
def test_blocks_do_not_see_each_other(scope: str) -> None:
    text = KERNEL.format(blocks=4, threads=32, others=32)
    text = text.replace("B[0, 0] = C[vi, vj]", "B[vi, vj] = C[3 - vi, vj]")
    func = program(text, allocate=f'C = T.alloc_buffer((4, 32), "float32", scope="{scope}")')
    assert "BW238" in codes(func, GPU)


def test_shared_memory_ends_with_its_kernel() -> None:
    text = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("C"):
        vi = T.axis.spatial(4, bx)
        C[vi] = A[vi, 0]
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("B"):
        vi = T.axis.spatial(4, bx)
        B[vi, 0] = C[vi]
"""
    allocate = 'C = T.alloc_buffer((4,), "float32", scope="{}")'
    assert codes(program(text, allocate=allocate.format("global")), GPU) == []
    found = problems(program(text, allocate=allocate.format("shared")), GPU)
    assert found[0][0] == "BW238"
    assert "ends with its kernel" in found[0][1]


COOPERATIVE = """
for ty in T.thread_binding(8, thread="threadIdx.y"):
    for k in range(4):
        for f in {fetch}:
            with T.block("S"):
                vk = T.axis.spatial(4, k)
                vf = T.axis.spatial({part}, f)
                S[vk, vf] = A[vk, vf]
        for j in range(8):
            with T.block("B"):
                vy, vk, vj = T.axis.remap("SSS", [ty, k, j])
                B[vy, vk * 8 + vj] = S[vk, vj]
"""
SHARED = 'S = T.alloc_buffer((4, 8), "float32", scope="shared")'


def test_threads_fetch_together_what_all_of_them_read() -> None:
    fetch = 'T.thread_binding(8, thread="threadIdx.y")'
    assert codes(program(COOPERATIVE.format(fetch=fetch, part=8), allocate=SHARED), GPU) == []


def test_a_cooperative_fetch_must_fetch_everything() -> None:
    """With both loops on one axis, a thread fetches one element; seven are too few for eight."""
    text = COOPERATIVE.format(fetch='T.thread_binding(8, thread="threadIdx.y")', part=8)
    part = text.replace(
        "vf = T.axis.spatial(8, f)", "vf = T.axis.spatial(8, f)\n                T.where(f < 7)"
    )
    assert codes(program(part, allocate=SHARED), GPU) == ["BW235"]


def test_every_thread_for_itself_meets_in_shared_memory() -> None:
    assert codes(program(COOPERATIVE.format(fetch="range(8)", part=8), allocate=SHARED)) == [
        "BW240"
    ]


def test_a_barrier_needs_all_threads() -> None:
    text = """
for tx in T.thread_binding(32, thread="threadIdx.x"):
    if tx < 16:
        with T.block("S"):
            vi = T.axis.spatial(32, tx)
            S[vi] = A[vi, 0]
        with T.block("B"):
            vi = T.axis.spatial(32, tx)
            B[vi, 0] = S[{index}]
"""
    allocate = 'S = T.alloc_buffer((32,), "float32", scope="shared")'
    assert codes(program(text.format(index="15 - vi"), allocate=allocate), GPU) == ["BW239"]
    assert codes(program(text.format(index="vi"), allocate=allocate), GPU) == []


@pytest.mark.parametrize(
    ("write", "read", "expected"),
    [
        ("range(8)", 'T.thread_binding(8, thread="threadIdx.z")', ["BW239"]),
        ('T.thread_binding(8, thread="threadIdx.z")', "range(8)", ["BW239"]),
        ("range(8)", "range(8)", []),
    ],
)
@pytest.mark.parametrize("scope", ["shared", "global"])
def test_the_first_thread_alone_does_what_stands_outside_of_an_axis(
    write: str, read: str, expected: list[str], scope: str
) -> None:
    """Under a condition on another axis no barrier can stand between it and the threads of `z`."""
    func = program(f"""
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("some"):
        vx = T.axis.spatial(1, tx)
        T.where(tx < 1)
        S = T.alloc_buffer((8,), "float32", scope="{scope}")
        for i in {write}:
            with T.block("S"):
                vi = T.axis.spatial(8, i)
                S[vi] = A[vx, vi]
        for j in {read}:
            with T.block("B"):
                vj = T.axis.spatial(8, j)
                B[vx, vj] = S[vj]
""")
    assert codes(func, GPU) == expected


# ------------------------------------------------------------------------------ who runs what
SCOPED = """
for bx in T.thread_binding(4, thread="blockIdx.x"):
    with T.block("group", exec_scope="gpu_block"):
        vb = T.axis.spatial(4, bx)
        for ty in T.thread_binding(8, thread="threadIdx.y"):
            with T.block("warp", exec_scope="gpu_warp"):
                vy = T.axis.spatial(8, ty)
                for tx in T.thread_binding({lanes}, thread="threadIdx.x"):
                    with T.block("thread", exec_scope="gpu_thread"):
                        vx = T.axis.spatial({lanes}, tx)
                        B[vb * 8 + vy, vx] = A[vb * 8 + vy, vx]
"""


def test_memory_and_execution_scopes_of_the_rfc() -> None:
    assert codes(program(SCOPED.format(lanes=32)), GPU) == []
    found = problems(program(SCOPED.format(lanes=16)), GPU)
    assert [code for code, _ in found] == ["BW239"]
    assert "needs a full warp of 32 threads" in found[0][1]


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (
            ('exec_scope="gpu_thread"', 'exec_scope="gpu_warp"'),
            "BW239",
            "differ between its threads",
        ),
        (
            ('"group", exec_scope="gpu_block"', '"group", exec_scope="gpu_thread"'),
            "BW239",
            "single threads",
        ),
        (('exec_scope="gpu_warp"', 'exec_scope="gpu_team"'), "BW231", "not an execution scope"),
    ],
)
def test_execution_scopes_that_do_not_fit(change: tuple[str, str], code: str, why: str) -> None:
    found = problems(program(SCOPED.format(lanes=32).replace(*change)))
    assert found[0][0] == code
    assert any(why in text for _, text in found)


def test_races_in_the_last_iteration_of_the_loops_around_are_seen() -> None:
    func = program("""
for k in range(3):
    for tx in T.thread_binding(4, thread="threadIdx.x"):
        with T.block("B"):
            vk = T.axis.spatial(3, k)
            T.where(2 <= k)
            B[vk, 0] = A[vk, 0]
""")
    assert codes(func) == ["BW240"]


def test_races_in_the_last_member_of_another_axis_are_seen() -> None:
    func = program(
        """
for b in T.thread_binding(4, thread="blockIdx.x"):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        with T.block("copy"):
            vb = T.axis.spatial(4, b)
            T.where(1 <= b)
            S[vb, 0] = A[vb, 0]
        with T.block("B"):
            vb, vt = T.axis.remap("SS", [b, t])
            T.where(1 <= b)
            B[vb, vt] = S[vb, 0]
""",
        allocate='S = T.alloc_buffer((32, 32), "float32", scope="shared")',
    )
    assert codes(func) == ["BW240"]


def test_what_a_view_shows_is_touched_where_it_is() -> None:
    """On-chip memory that is read through a view outside of its kernel."""
    func = program("""
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("C"):
        vi = T.axis.spatial(32, tx)
        C[vi] = A[vi, 0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        T.reads(C[vi])
        T.writes(B[vi, 0])
        V = T.match_buffer(C[vi], (1,), "float32", scope="shared", offset_factor=1)
        B[vi, 0] = V[0]
""", allocate='C = T.alloc_buffer((32,), "float32", scope="shared")')  # fmt: skip
    assert codes(func) == ["BW238"]


def test_no_loop_of_a_kernel_is_parallel() -> None:
    text = """
for tx in T.thread_binding(4, thread="threadIdx.x"):
    for i in T.{kind}(8):
        with T.block("B"):
            vi = T.axis.spatial(32, tx * 8 + i)
            B[vi, 0] = A[vi, 0]
"""
    assert codes(program(text.format(kind="serial")), GPU) == []
    assert codes(program(text.format(kind="parallel")), GPU) == ["BW231"]


@pytest.mark.parametrize(("scope", "expected"), [("shared", ["BW240"]), ("local", [])])
def test_shared_memory_is_one_for_all_threads_wherever_it_is_allocated(
    scope: str, expected: list[str]
) -> None:
    func = program(f"""
for tx in T.thread_binding(4, thread="threadIdx.x"):
    with T.block("rows"):
        vx = T.axis.spatial(4, tx)
        T.reads(A[0, 0])
        T.writes(B[vx, 0])
        first = T.alloc_buffer((1,), "float32", scope="{scope}")
        with T.block("first"):
            T.reads(A[0, 0])
            T.writes(first[0])
            first[0] = A[0, 0]
        with T.block("B"):
            T.reads(first[0])
            T.writes(B[vx, 0])
            B[vx, 0] = first[0]
""")
    assert codes(func, GPU) == expected


def test_operations_of_a_whole_block_are_reached_by_all_threads() -> None:
    text = """
for tx in T.thread_binding(32, thread="threadIdx.x"):
    with T.block("B"):
        vi = T.axis.spatial(32, tx)
        T.where({condition})
        T.reads(A[vi, 0])
        T.writes(B[vi, 0])
        T.evaluate(T.tvm_storage_sync("shared"))
        B[vi, 0] = A[vi, 0]
"""
    assert codes(program(text.format(condition="True")), GPU) == []
    assert codes(program(text.format(condition="tx < 16")), GPU) == ["BW239"]


@pytest.mark.parametrize(("lanes", "expected"), [(32, []), (16, ["BW239"])])
def test_matrix_operations_of_a_warp_need_a_full_one(lanes: int, expected: list[str]) -> None:
    func = program(f"""
for tx in T.thread_binding({lanes}, thread="threadIdx.x"):
    with T.block("mma"):
        T.reads(A[0:16, 0:16])
        T.writes(C[0:16, 0:16])
        T.evaluate(T.tvm_fill_fragment(C.data, 16, 16, 16, 0, T.float32(0)))
""", allocate='C = T.alloc_buffer((16, 16), "float32", scope="wmma.accumulator")')  # fmt: skip
    assert codes(func, GPU) == expected


def test_a_processor_has_no_axes_and_no_execution_scopes() -> None:
    assert set(codes(program(SCOPED.format(lanes=32)), "x86-64-v3")) == {"BW231"}


# ------------------------------------------------------------------------------ views
VIEW = """
for i, j in T.grid(8, {tiles}):
    with T.block("tile"):
        vi = T.axis.spatial(8, i)
        vj = T.axis.spatial({tiles}, j)
        T.reads({source}[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8])
        T.writes(B[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8])
        a = T.match_buffer({source}[vi * 4:vi * 4 + 4, vj * {width}:vj * {width} + 8], (4, 8),
                           "float32"{demands})
        for x, y in T.grid(4, 8):
            B[vi * 4 + x, vj * {width} + y] = a[x, y]
"""


def view(demands: str, width: int = 8, tiles: int = 4, source: str = "A") -> list[str]:
    text = VIEW.format(demands=demands, width=width, tiles=tiles, source=source)
    if source == "C":
        fill = """
for i, j in T.grid(32, 32):
    with T.block("C"):
        vi, vj = T.axis.remap("SS", [i, j])
        C[vi, vj] = A[vi, vj]
"""
        return codes(program(fill + text, allocate='C = T.alloc_buffer((32, 32), "float32")'))
    return codes(program(text))


@pytest.mark.parametrize(
    ("demands", "source"),
    [("", "A"), (", offset_factor=8", "A"), (", strides=(32, 1)", "A"), (", align=32", "C"),
     (", strides=(s, 1)", "A")],
)  # fmt: skip
def test_views_whose_demands_are_proved(demands: str, source: str) -> None:
    if "s," in demands:  # a name is bound to whatever the stride is
        demands = demands.replace("s,", 'T.var("s", "int32"),')
    assert view(demands, source=source) == []


@pytest.mark.parametrize(
    ("demands", "source"),
    [(", offset_factor=16", "A"), (", strides=(8, 1)", "A"), (", align=32", "A"),
     (", align=64", "C"), (', scope="shared"', "A")],
)  # fmt: skip
def test_views_whose_demands_are_not(demands: str, source: str) -> None:
    assert view(demands, source=source) == ["BW241"]


def test_views_stay_inside_their_buffer() -> None:
    assert "BW241" in view("", width=7, tiles=5)


# -------------------------------------------------------------------------------- inside of blocks
def test_values_with_names_are_reads_like_others() -> None:
    """Iteration i reads what iteration i + 1 writes."""
    body = """
for i in T.parallel(31):
    with T.block("B"):
        vi = T.axis.spatial(31, i)
        next: T.float32 = B[vi + 1, 0]
        B[vi, 0] = next * 2.0
"""
    assert codes(program(body)) == ["BW240"]
    assert codes(program(body.replace("T.parallel", "T.serial"))) == []


def test_what_stands_behind_a_jump_may_not_happen() -> None:
    """Elements from the tenth on have no value; the loop is left before it reads them."""
    body = """
for i in range(10):
    with T.block("C"):
        vi = T.axis.spatial(10, i)
        C[vi] = A[vi, 0]
for i in range(32):
    with T.block("B"):
        vi = T.axis.spatial(32, i)
        for j in range(32):
            if j >= 10:
                break
            B[vi, j] = C[j]
"""
    allocate = 'C = T.alloc_buffer((32,), "float32")'
    assert codes(program(body, allocate=allocate)) == []
    assert codes(
        program(body.replace("j >= 10", "j >= 40").replace("break", "pass"), allocate=allocate)
    ) == ["BW235"]


TWO_TYPES = """
@T.prim_func
def main(A: T.Buffer((8,), "float32")):
    C = T.alloc_buffer((8,), "float32")
    {outside}
    for i in {loop}:
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            {inside}
            C[vi] = T.float32(1)
            D[{index}] = D_TYPE(3)
    for i in range(8):
        with T.block("Q"):
            vi = T.axis.spatial(8, i)
            A[vi] = C[vi]
"""


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("loop", ["T.parallel(8)", 'T.thread_binding(8, thread="threadIdx.x")'])
@pytest.mark.parametrize(
    ("view", "index", "byte"),
    [
        ('(32,), "uint8"', "vi", 1),
        ('(32,), "uint8"', "vi * 4 + 1", None),
        ('(32,), "uint8"', "vi * 4 + 4", 4),
        ('(16,), "uint16"', "vi * 2 + 1", None),
        ('(4,), "int64"', "vi // 2", 0),
        ('(4,), "int32", elem_offset=4', "vi % 4", 16),
        ('(4,), "int32", strides=(2,)', "vi // 2", 0),
    ],
)
def test_iterations_meet_in_bytes_under_two_types(
    view: str, index: str, byte: int | None, loop: str, where: str
) -> None:
    places = {"inside": "", "outside": "", where: f"D = T.decl_buffer({view}, data=C.data)"}
    text = TWO_TYPES.format(loop=loop, index=index, **places)
    text = text.replace("D_TYPE", "T." + view.split('"')[1])
    func = bw.from_source(text)
    assert isinstance(func, ir.PrimFunc)
    found = problems(func)
    assert [code for code, _ in found] == ([] if byte is None else ["BW240"]), found
    assert byte is None or f"byte {byte} of C" in found[0][1]


ONCE = ("vi", "7 - vi", "vi * 3 % 8", "vi // 2 * 2 + vi % 2")
AGAIN = ("vi % 4", "vi // 2", "(vi + 1) // 2", "0", "T.max(vi, 2)")


@pytest.mark.parametrize("loop", ["parallel", "vectorized"])
@pytest.mark.parametrize("index", [*ONCE, *AGAIN])
def test_iterations_that_come_back_to_an_element_meet(index: str, loop: str) -> None:
    func = bw.from_source(f"""
@T.prim_func
def main(A: T.Buffer((8,), "float32")):
    for i in T.{loop}(8):
        with T.block("P"):
            vi = T.axis.spatial(8, i)
            A[{index}] = T.float32(3)
""")
    assert isinstance(func, ir.PrimFunc)
    assert codes(func) == ([] if index in ONCE else ["BW240"])


LANES = """
@T.prim_func
def main(A: T.Buffer((8, 16), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("init"):
            vi = T.axis.spatial(8, i)
            B[vi] = T.float32(0)
        for k in T.vectorized(16):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                B[vi] = {update}
"""


@pytest.mark.parametrize(
    ("update", "found"),
    [
        ("B[vi] + A[vi, vk]", []),
        ("T.max(B[vi], A[vi, vk])", []),
        ("B[vi] * A[vi, vk] + T.float32(1)", ["BW240"]),
    ],
)
def test_lanes_combine_the_terms_of_a_commutative_reducer(update: str, found: list[str]) -> None:
    func = bw.from_source(LANES.format(update=update))
    assert isinstance(func, ir.PrimFunc)
    assert codes(func) == found
