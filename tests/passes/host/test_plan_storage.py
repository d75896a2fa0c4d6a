"""The memory plan as users see it: the listing of the paper's figure, and what lowering follows."""

from __future__ import annotations

from typing import Any

import numpy as np

import blockwright as bw
from blockwright import ir
from blockwright.passes import PassContext
from blockwright.passes.host.plan_storage import MEMORY_PLAN, current_plan, plan_storage
from blockwright.target import Target

FIGURE = """
@R.function
def main(x: R.Tensor((2, "n"), "float32")):
    n = T.int64()
    lv0 = R.exp(x)
    lv1 = R.permute_dims(lv0)
    lv2 = R.relu(lv1)
    lv3 = R.permute_dims(lv2)
    return lv3
"""
FUSION = "CrossLevelDynShapeAwareOperatorFusion"


def test_the_listing_of_the_figure(parse: Any) -> None:
    """Two storages of 2 * n * 4 bytes hold four tensors; lv2 even overwrites lv1, which it reads
    last, and the second storage is that of the result."""
    pipeline = bw.default_pipeline().without(FUSION).until("plan_storage")
    module = pipeline(parse(FIGURE))
    assert module["main"].attrs[MEMORY_PLAN] == [
        "allocate (n * 8) bytes for s0: result lv3",
        "allocate (n * 8) bytes for s1: at 0 of the arena",
        "instantiate lv0: (2, n) float32 from s0",
        "instantiate lv1: (n, 2) float32 from s1",
        "instantiate lv2: (n, 2) float32 from s1",
        "instantiate lv3: (2, n) float32 from s0",
    ]
    assert "instantiate lv1: (n, 2) float32 from s1" in module.script()


def test_what_is_printed_is_what_runs(parse: Any) -> None:
    exe = bw.compile(parse(FIGURE), options={"pipeline": bw.default_pipeline().without(FUSION)})
    x = np.arange(6, dtype="float32").reshape(2, 3) - 3
    np.testing.assert_allclose(exe(x), np.maximum(np.exp(x), 0), rtol=1e-6)
    assert exe.memory_plan.use(x).planned == 64 + x.nbytes  # the arena is aligned to 64 bytes
    (run,) = [run for run in exe.passes.runs if run.name == "plan_storage"]
    assert MEMORY_PLAN in run.after["main"].attrs


def test_a_function_that_changed_is_planned_again(parse: Any) -> None:
    @bw.function_pass
    def first(function: ir.GraphFunction, ctx: PassContext) -> ir.GraphFunction:
        """Return the first value."""
        binding = function.bindings[0]
        assert isinstance(binding, ir.VarBinding)
        value = binding.var
        return function.replace(body=function.body.replace(body=value), ret_info=value.info)

    pipeline = bw.default_pipeline().without(FUSION).before("lower_host", first)
    exe = bw.compile(parse(FIGURE), options={"pipeline": pipeline})
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_allclose(exe(x), np.exp(x), rtol=1e-6)


def test_a_plan_holds_for_the_programs_it_was_made_for(parse: Any) -> None:
    pipeline = bw.default_pipeline().without(FUSION).until("protect_updates")
    context = PassContext(Target("native"))
    module = plan_storage(pipeline(parse(FIGURE)), context)
    function, known = module["main"], context.memory_plans["main"]
    assert isinstance(function, ir.GraphFunction)
    assert current_plan(function, module, known) is known.plan
    name = next(n for n, f in module.functions.items() if isinstance(f, ir.PrimFunc))
    other = module.functions | {name: module[name].replace(attrs=dict(module[name].attrs))}
    assert current_plan(function, module.replace(functions=other), known) is not known.plan
    assert current_plan(function, module, None) is not known.plan
