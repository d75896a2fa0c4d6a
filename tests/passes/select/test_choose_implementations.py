"""Offers decide which implementation a call gets; those of the strategies are tested there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

import blockwright as bw
from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.ops.implementation import lower_call
from blockwright.ops.row import Implementation, OpContext, Parameters
from blockwright.ops.table import OPERATORS, register_implementation
from blockwright.passes import PassContext
from blockwright.passes.select.choose_implementations import choose_implementations
from blockwright.strategies import (
    OFFERS,
    Candidate,
    Offer,
    OperatorCall,
    Refused,
    offers_for,
    register_offer,
)
from blockwright.support import ScheduleError
from blockwright.target import Target

MACHINE = Target("x86-64-v3", num_threads=2)
Predict = Callable[[OperatorCall, Target], "Sequence[Candidate] | Refused"]


class Parts(Parameters, frozen=True):
    """Number of parts."""

    count: int


def lower_parts(ctx: OpContext, infos: Any, attrs: Any, parts: Parts) -> ir.PrimFunc:
    return lower_call(OPERATORS["exp"], OpContext("exp"), infos, {})


def why_not(ctx: OpContext, infos: Any, attrs: Any, parts: Parts) -> str:
    return "it has no odd counts" if parts.count % 2 else ""


PARTS = Implementation("parts", lower_parts, "The same.", Parts, why_not)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """`exp` has an implementation `parts`; what a test registers is gone after it."""
    rows, offers = dict(OPERATORS), list(OFFERS)
    register_implementation("exp", PARTS)
    yield
    OPERATORS.clear()
    OPERATORS.update(rows)
    OFFERS[:] = offers


def offer(predict: Predict, implementation: str = "parts", **fields: Any) -> Offer:
    return register_offer(Offer("exp", implementation, predict, **fields))


def takes(*times: tuple[float, int]) -> Predict:
    """Predictions in microseconds, for counts."""
    return lambda call, target: [Candidate(time * 1e-6, Parts(n)) for time, n in times]


def default(time: float) -> Offer:
    return offer(lambda call, target: [Candidate(time * 1e-6)], "default")


def model(size: Any = 64, **attrs: Any) -> ir.IRModule:
    builder = GraphBuilder()
    shape = (ir.as_expr(size, ir.dtype_of("int64")),)
    x = builder.param("x", ir.TensorInfo(shape, ir.dtype_of("float32")))
    return ir.IRModule({"main": builder.finish("main", builder.op("exp", x, **attrs))})


def choice(module: ir.IRModule, **options: Any) -> tuple[str | None, list[str]]:
    """The attribute of the call after the pass, and the recorded decisions."""
    ctx = PassContext(MACHINE, options)
    after = choose_implementations(module, ctx)
    (call,) = ir.collect(after["main"], ir.GraphCall)
    return call.attrs.get("implementation"), ctx.decisions.get("choose_implementations", [])


def test_the_fastest_is_chosen_and_all_times_are_recorded() -> None:
    default(20)
    offer(takes((12, 2), (8, 4), (9, 6)))
    times = "default 20 µs, parts(count=2) 12 µs, parts(count=4) 8 µs, parts(count=6) 9 µs"
    assert choice(model()) == ("parts(count=4)", [f"exp: parts(count=4); predicted: {times}"])


def test_the_default_stays_unless_another_is_faster() -> None:
    default(20)
    offer(takes((20, 2)))
    times = "default 20 µs, parts(count=2) 20 µs"
    assert choice(model()) == (None, [f"exp: default; predicted: {times}"])


def test_less_accurate_ones_must_be_clearly_faster() -> None:
    """Each is compared with the best of those before it."""
    default(20)
    offer(takes((17.9, 2), (16.2, 4), (16.0, 6)), share=0.9)
    assert choice(model())[0] == "parts(count=6)"
    OFFERS.pop()
    offer(takes((17.9, 2), (16.2, 4), (16.2, 6)), share=0.9)
    assert choice(model())[0] == "parts(count=2)"


def test_a_refusal_is_recorded() -> None:
    offer(lambda call, target: Refused(f"{target.vector_bits} bits have no parts"))
    line = "exp: default; not parts: 256 bits have no parts"
    assert choice(model()) == (None, [line])


def test_parameters_that_the_implementation_refuses_are_not_chosen() -> None:
    default(20)
    offer(takes((1, 1), (8, 4)))
    assert choice(model())[0] == "parts(count=4)"
    OFFERS.pop()
    offer(takes((1, 1), (2, 3)))
    assert choice(model()) == (None, ["exp: default; not parts: it has no odd counts"])


def test_an_offer_that_fails_is_passed_over_with_a_warning() -> None:
    default(20)
    offer(lambda call, target: [Candidate(1 / 0)])
    with pytest.warns(bw.BlockwrightWarning, match=r"BW645.*offer of parts for exp.*ZeroDivision"):
        chosen, (line,) = choice(model())
    assert chosen is None
    assert line.startswith("exp: default; not parts: its offer failed: ZeroDivisionError at ")


def test_an_offer_without_candidates_is_a_refusal() -> None:
    offer(takes())
    assert choice(model())[0] is None


def test_offers_see_the_call() -> None:
    seen: list[OperatorCall] = []

    def predict(call: OperatorCall, target: Target) -> Refused:
        seen.append(call)
        return Refused("seen")

    offer(predict)
    choice(model())
    (call,) = seen
    assert (call.operator, call.attrs, call.constants) == ("exp", OPERATORS["exp"].attrs, (False,))
    assert call.infos[0].shape is not None
    assert isinstance(call.result, ir.TensorInfo)
    assert not call.uncached


@pytest.mark.parametrize("named", ["default", "parts(count=2)"])
def test_a_call_that_names_one_is_left_alone(named: str) -> None:
    default(20)
    offer(takes((8, 4)))
    assert choice(model(implementation=named)) == (named, [])


def test_without_an_offer_the_default_is_scheduled_and_estimated() -> None:
    offer(takes((1e9, 2)))
    (line,) = choice(model(1 << 20))[1]
    assert line.startswith("exp: default; predicted: default ")
    assert 50 < float(line.split("default ")[-1].split(" ")[0]) < 5000  # 8 MB are moved
    OFFERS.pop()
    offer(takes((1e-3, 2)))
    assert choice(model(1 << 20))[0] == "parts(count=2)"
    why = "not compared: nothing predicts the time of the default for symbolic sizes"
    assert choice(model(ir.var("n", "int64"))) == (None, [f"exp: default; {why}"])


def test_options_disable_implementations_and_strategies() -> None:
    default(20)
    offer(takes((8, 4)), strategy="elementwise")
    assert choice(model())[0] == "parts(count=4)"
    assert choice(model(), disabled_implementations=["parts"]) == (None, [])
    assert choice(model(), disabled_strategies=["elementwise"]) == (None, [])


def test_a_compiled_model_uses_and_shows_the_choice() -> None:
    default(20)
    offer(takes((8, 4)))
    exe = bw.compile(model())
    shown = exe.show("programs")
    assert "# exp: parts(count=4); predicted: default 20 µs, parts(count=4) 8 µs\n" in shown
    other = bw.compile(model(), options={"disabled_implementations": ["parts"]})
    assert "parts" not in other.show("programs")


def test_offers_are_registered_once_and_for_what_exists() -> None:
    offer(takes())
    again = Offer("exp", "parts", takes((8, 4)))
    wrong = {
        "already": again,
        "no operator 'expp'": msgspec.structs.replace(again, operator="expp"),
        "no implementation 'part'": msgspec.structs.replace(again, implementation="part"),
    }
    for why, each in wrong.items():
        with pytest.raises(ScheduleError, match=why) as caught:
            register_offer(each)
        assert caught.value.code == "BW343"
        assert caught.value.help
    register_offer(again, override=True)
    assert offers_for("exp") == [again]


def test_own_offers_are_for_what_exists() -> None:
    for each in OFFERS:
        names = [known.name for known in OPERATORS[each.operator].implementations]
        assert each.implementation in ("default", *names)
