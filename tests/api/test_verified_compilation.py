"""`bw.compile(..., verify=True)`: every schedule proved, or said why not, or refused."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("islpy")

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext, Pipeline
from blockwright.passes.rewrite import map_programs
from blockwright.support import BuildError, OptionError

MODEL = """
@I.ir_module
class Model:
    @R.function
    def main(x: R.Tensor(("n", 24), "float32"), w: R.Tensor((24, 24), "float32")):
        R.func_attr({"tir_var_lower_bound": {"n": 1}, "tir_var_upper_bound": {"n": 64}})
        n = T.int64()
        with R.dataflow():
            a: R.Tensor((n, 24), "float32") = R.softmax(x)
            b: R.Tensor((n, 24), "float32") = R.matmul(a, w)
            c: R.Tensor((n, 24), "float32") = R.matmul(b, w)
            y: R.Tensor((n, 24), "float32") = R.softmax(c)
            R.output(y)
        return y
"""


@pytest.fixture(scope="module")
def model() -> ir.IRModule:
    return bw.from_source(MODEL)


class _Wrong(ir.Mutator):
    """An error in a schedule: sums become products, or `x + y` is rounded otherwise."""

    def __init__(self, harmless: bool) -> None:
        super().__init__()
        self.harmless = harmless

    def rewrite_Call(self, node: ir.Call) -> ir.Expr:
        if node.op != "exp_ftz":
            return self.descend(node)
        two = ir.const(2, node.dtype)
        changed = node.args[0] * two * ir.const(0.5, node.dtype)
        return ir.Call(node.op, (changed if self.harmless else node.args[0] * two,), node.type)


def pipeline_with(change: ir.Mutator) -> Pipeline:
    """The pipeline with an error in what the rules make."""

    pipeline = bw.default_pipeline()
    schedule = dict(pipeline.passes)["schedule_programs"]

    def broken(module: ir.IRModule, context: PassContext) -> ir.IRModule:
        return map_programs(
            schedule(module, context), lambda name, f: f.replace(body=change(f.body))
        )

    return pipeline.replace("schedule_programs", ("schedule_programs", broken))


def test_every_schedule_is_proved_and_equal_ones_once(model: ir.IRModule) -> None:
    seen: list[tuple[str, int, int]] = []
    exe = bw.compile(model, verify="prove", progress=lambda *at: seen.append(at))
    assert exe.proofs is not None
    rules = {one.kernels: one.strategy for one in exe.proofs.schedules}
    assert set(rules.values()) in (
        {"inner_reduction", "gemm"},
        {"inner_reduction", "gemv"},
    )  # as registers are many or few
    assert sorted(n for names in rules for n in names) == sorted(exe.context.traces)
    assert all(one.verdict == "proved" and not one.why for one in exe.proofs.schedules)
    assert ("verify", len(rules), len(rules)) in seen
    table = str(exe.proofs)
    assert f"{len(rules)} of {len(rules)} schedules proved" in table
    assert "softmax" in table
    assert exe.context.timings["verify"] > 0


def test_nothing_is_proved_unless_asked(model: ir.IRModule) -> None:
    exe = bw.compile(model)
    assert exe.proofs is None


def test_a_refuted_schedule_is_not_built(model: ir.IRModule) -> None:
    options = {"pipeline": pipeline_with(_Wrong(harmless=False))}
    with pytest.raises(
        BuildError, match=r"softmax.* \(strategy inner_reduction\): .* before and .* after"
    ) as found:
        bw.compile(model, verify=True, options=options)
    assert found.value.code == "BW643"
    assert "disabled_strategies" in str(found.value.help)


def test_what_is_not_known_is_listed_or_refused(model: ir.IRModule) -> None:
    options = {"pipeline": pipeline_with(_Wrong(harmless=True))}
    exe = bw.compile(model, verify=True, options=options)
    assert exe.proofs is not None
    verdicts = {one.verdict: one for one in exe.proofs.schedules}
    assert set(verdicts) == {"proved", "unknown"}
    assert "exp" in verdicts["unknown"].why
    with pytest.raises(BuildError, match="could not be proved: softmax") as found:
        bw.compile(model, verify="prove", options=options)
    assert found.value.code == "BW644"


def test_no_other_way_of_verifying(model: ir.IRModule) -> None:
    wrong: Any = "full"
    with pytest.raises(OptionError, match="'full'") as found:
        bw.compile(model, verify=wrong)
    assert found.value.code == "BW927"
