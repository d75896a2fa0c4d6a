"""ChannelsLast: convert convolutions and pools to channels-last layout where it pays.

Before::

    @R.function
    def main(x: R.Tensor((1, 56, 56, 64), "float32"), w: R.Tensor((64, 64, 3, 3), "float32")):
        a = R.permute_dims(x, axes=(0, 3, 1, 2))
        b = R.nn.conv2d(a, w, padding=1)
        c = R.relu(b)
        d = R.permute_dims(c, axes=(0, 2, 3, 1))
        return d

After::

    @R.function
    def main(x: R.Tensor((1, 56, 56, 64), "float32"), w: R.Tensor((64, 64, 3, 3), "float32")):
        b = R.nn.conv2d(x, w, padding=1, data_layout="NHWC")
        c = R.relu(b)
        return c

With channels contiguous in memory, kernels vectorize along them: products read and write rows, and
windows slide over whole vectors. The layout propagates from the operators that profit to the users
of their results (`layout_rules`), up to operators without a rule, where a layout change remains.
Permutations in the model are treated as layout changes and cancel with inserted ones. A permutation
that moves only axes of size one is a view and free. If only products with constant weights read a
flattened tensor, it is flattened in stored order and the rows of the weights are permuted instead.

Decisions are made for regions: operators connected by tensors stored channels-last. With

    bytes    = bytes that the layout changes of the region read and write,
    were     = bytes that the model's own layout changes between its operators did before,
    profit   = FLOP / `Core.reorder_flops` + bytes of the result, of dense convolutions,

a region is converted if bytes < were + profit, or if both sides are 0. Profits are in bytes moved:
on channels-first data a dense convolution gathers its operand and scatters its result, which was
measured to cost as much as copying one byte per so many operations and one per byte of the result.
Depthwise convolutions and pools are as fast in either layout and follow their neighbors.
Symbolic sizes count as 128, or the nearest size allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.layout.layout_regions import Region, describe, is_worth_it
from blockwright.passes.layout.layout_trial import Trial
from blockwright.passes.rewrite import map_graph_functions
from blockwright.target import Target


class Decision(msgspec.Struct, frozen=True):
    """A trial whose regions all pay, and the regions rejected before."""

    trial: Trial
    rejected: Sequence[Region]


def decide(function: ir.GraphFunction, target: Target) -> Decision:
    """Convert everything, then repeat without the regions that do not pay until all others do."""
    plain: set[ir.GraphVar] = set()
    rejected: list[Region] = []
    while True:
        trial = Trial(function, plain, target.core.reorder_flops)
        trial.run()
        losing = [region for region in trial.regions() if not is_worth_it(region)]
        if not losing:
            return Decision(trial, rejected)
        rejected += [region for region in losing if region.profit]
        plain.update(var for region in losing for var in region.members)


@graph_pass
def channels_last(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Store tensors channels-last where it pays; record the decisions in `ctx.decisions`."""

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        decision = decide(function, ctx.target)
        regions = decision.trial.regions()
        lines = [f"{name}: {describe(r, True)}" for r in regions if r.profit or r.moved or r.were]
        lines += [f"{name}: {describe(r, False)}" for r in decision.rejected]
        ctx.decisions.setdefault("channels_last", []).extend(lines)
        return decision.trial.finish() if regions else function

    return map_graph_functions(module, one)
