"""Random torch modules against PyTorch: a few fixed seeds, and a fault that is put in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzing.eager.compare import difference, integers_become_float64
from fuzzing.modules import judge as judge_file
from fuzzing.modules.campaign import play
from fuzzing.modules.draw import draw
from fuzzing.modules.judge import judge
from fuzzing.modules.program import ModuleCall, ModuleProgram, Ref, Size, Unspecified, run
from fuzzing.modules.reduce import reduced
from fuzzing.modules.script import as_script


@pytest.mark.parametrize("first", [5000, 5010])
def test_random_modules_compute_what_pytorch_does(first: int) -> None:
    found = [play(seed) for seed in range(first, first + 10)]
    assert not [f for f in found if f.verdict.what in ("wrong", "internal")]
    assert sum(f.verdict.what == "passed" for f in found) >= 5


def _program(
    *calls: ModuleCall, outputs: tuple[int, ...] = (-1,), dynamic: bool = False
) -> ModuleProgram:
    x = torch.arange(-6.0, 6.0).reshape(3, 4)
    last = len(calls)
    outputs = tuple(last if i < 0 else i for i in outputs)
    return ModuleProgram((x,), frozenset(), calls, outputs, dynamic)


CHAIN = (
    ModuleCall("torch.exp", (Ref(0),)),
    ModuleCall("torch.relu", (Ref(0),), exact=True),
    ModuleCall("torch.add", (Ref(1), Ref(2))),
    ModuleCall("torch.floor", (Ref(3),), exact=True),
    ModuleCall("torch.neg", (Ref(4),), exact=True),
)


def _floors_are_one_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that computes floor wrong."""

    def compiled(program: Any) -> Any:
        graph = program.graph_module
        for node in graph.graph.nodes:
            if node.target is torch.ops.aten.floor.default:
                node.target = torch.ops.aten.ceil.default
        graph.recompile()
        return program.module()

    monkeypatch.setattr(judge_file, "compiled", compiled)


def test_a_fault_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    _floors_are_one_too_high(monkeypatch)
    program = _program(*CHAIN)
    verdict = judge(program)
    assert verdict.what == "wrong"
    small = reduced(program, lambda p: judge(p).what == "wrong")
    assert [c.fn for c in small.calls] == ["torch.floor"]
    text = as_script(small, judge(small), 0)
    assert "torch.floor(" in text
    compile(text, "script", "exec")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_either_zero_is_a_maximum_of_zeros_of_both_signs(dtype: torch.dtype) -> None:
    """Kernels of PyTorch return different ones, which `atan2` makes visible."""
    zeros = torch.tensor([0.0, -0.0], dtype=dtype).repeat(40)
    calls = (
        ModuleCall("torch.maximum", (Ref(0), Ref(1)), exact=True),
        ModuleCall("torch.atan2", (Ref(0), Ref(2))),
    )
    for other in (zeros.flip(0), torch.zeros_like(zeros)):
        program = ModuleProgram((zeros, other), frozenset(), calls, (3,), dynamic=False)
        assert judge(program).what == "passed"
    abs_ = ModuleProgram(
        (zeros,), frozenset(), (ModuleCall("torch.abs", (Ref(0),), exact=True),), (1,), False
    )
    chance = torch.Generator().manual_seed(0)
    assert not torch.signbit(run(abs_, (zeros,), chance)[0]).any(), "abs has one right zero"


@pytest.mark.parametrize("dynamic", [False, True])
def test_conditions_on_sizes_are_drawn_and_judged(dynamic: bool) -> None:
    program = _program(
        ModuleCall("torch.clamp", (Ref(0), 0, Size(0, 0, over=4)), exact=True), dynamic=dynamic
    )
    verdict = judge(program)
    assert verdict.what == "passed"
    assert ".shape[0] > 4)" in as_script(program, verdict, 0)


def test_other_roundings_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 * 10 and what is floored after it may be on either side of 1."""
    program = _program(
        ModuleCall("torch.mul", (Ref(0), 0.1)),
        ModuleCall("torch.mul", (Ref(1), 10.0)),
        ModuleCall("torch.floor", (Ref(2),), exact=True),
    )

    def compiled(_: Any) -> Any:
        return lambda x: torch.floor(x * 0.1 * 10 * (1 - 1e-7))

    monkeypatch.setattr(judge_file, "compiled", compiled)
    assert judge(program).what == "passed"


def test_calls_that_are_exact_inside_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's `layer_norm` of one half number is 6e-5 where the exact one is 0."""
    x = torch.full((2, 1), 3.25, dtype=torch.float16)
    calls = (
        ModuleCall("F.layer_norm", (Ref(0), (1,))),
        ModuleCall("torch.gt", (Ref(1), 0), exact=True),
    )
    program = ModuleProgram((x,), frozenset(), calls, (1, 2), dynamic=False)
    assert all(bool(value.all()) for value in run(program, [x]))

    def compiled(_: Any) -> Any:
        return lambda x: (torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool))

    monkeypatch.setattr(judge_file, "compiled", compiled)
    assert judge(program).what == "passed"


def test_a_mean_that_is_rounded_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.full((2, 17), 0.97242)
    program = ModuleProgram(
        (x,), frozenset(), (ModuleCall("F.layer_norm", (Ref(0), (17,))),), (1,), False
    )
    (wanted,) = run(program, [x])
    for error, verdict in ((2e-5, "passed"), (2e-3, "wrong")):
        monkeypatch.setattr(judge_file, "compiled", lambda _, e=error: lambda _: (wanted + e,))
        assert judge(program).what == verdict


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("ours", "theirs", "exact", "accepted"),
    [
        (-INF, NAN, 3.6e38, True),  # both overflowed on the way to a sum that does not fit
        (INF, NAN, 1.0, True),
        (1.0, NAN, 1.0, True),
        (2.0, NAN, 1.0, False),
        (-INF, INF, 3.6e38, False),  # PyTorch's is the exact one, rounded
        (INF, 1.0, 1.0, False),
        (NAN, -INF, -INF, False),
        (0.0, NAN, NAN, False),
    ],
)
def test_overflows_on_the_way(ours: float, theirs: float, exact: float, accepted: bool) -> None:
    a, b = torch.tensor([ours]), torch.tensor([theirs])
    assert bool(difference([a], [b], [torch.tensor([exact], dtype=torch.float64)])) is not accepted
    assert difference([a], [b])


def test_sums_of_float64_that_may_overflow_are_not_compared() -> None:
    large = torch.tensor([[1e200], [1e200]], dtype=torch.float64)
    for fn, judged in (("F.normalize", False), ("torch.neg", True)):
        program = ModuleProgram(
            (large,), frozenset(), (ModuleCall(fn, (Ref(0),)),), (1,), dynamic=False
        )
        assert (judge(program).what == "passed") is judged
        assert (judge(program).what == "eager") is not judged


def test_products_may_overflow_in_one_order_of_their_terms() -> None:
    """A fused multiply-add of 3e38 and -1.5 * 3e38 is finite, their separate sum is not."""
    rows = torch.tensor([[-1.0, 1.5], [-1.0, 0.5]])
    large = torch.tensor([-3e38, -3e38])
    call = ModuleCall("torch.matmul", (Ref(0), Ref(1)), exact=False)
    program = ModuleProgram((rows, large), frozenset(), (call,), (2,), dynamic=False)
    runs = [run(program, program.inputs, torch.Generator().manual_seed(n))[0] for n in range(16)]
    found = torch.stack(runs).isfinite()
    assert found[:, 0].any()
    assert not found[:, 0].all()
    assert not torch.stack(runs)[:, 1].isnan().all()


def test_runs_in_float64_of_integers() -> None:
    whole = torch.tensor([2, 3])
    calls = (ModuleCall("torch.sqrt", (Ref(0),)), ModuleCall("torch.mul", (Ref(1), Ref(1))))
    with integers_become_float64():
        (found,) = run(ModuleProgram((whole,), frozenset(), calls, (2,), dynamic=False), [whole])
    assert found.dtype is torch.float64
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.filterwarnings("ignore")  # of standard deviations of one element
def test_numbers_of_values_follow_when_a_value_becomes_an_input() -> None:
    for seed in range(5000, 5040):
        program = draw(seed)
        tried: list[ModuleProgram] = []

        def keep(smaller: ModuleProgram, tried: list[ModuleProgram] = tried) -> bool:
            tried.append(smaller)
            return False

        reduced(program, keep)
        for smaller in tried:
            run(smaller, smaller.inputs)


@pytest.mark.parametrize(
    ("factors", "depends"),
    [
        ([1e30, 1e30, 0.0, 1.0], True),
        ([1e30, 1e30, 1e-30, 1.0], True),
        ([1e-30, 1e-30, 1e30, 1.0], True),
        ([1e30, 1e30, 2.0, 1.0], False),
        ([1e-30, 1e-30, 0.5, 1.0], False),
        ([1e30, 1e-30, 0.0, 2.0], False),
    ],
)
def test_products_that_depend_on_the_order_are_not_judged(
    factors: list[float], depends: bool
) -> None:
    call = ModuleCall("torch.prod", (Ref(0), 0))
    program = ModuleProgram((torch.tensor(factors),), frozenset(), (call,), (1,), False)
    if depends:
        with pytest.raises(Unspecified):
            run(program, program.inputs, specified=True)
    else:
        assert run(program, program.inputs, specified=True)
