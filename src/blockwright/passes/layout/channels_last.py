"""ChannelsLast: convolutions and pools run over tensors whose channels are the last axis.

Before:  y = R.nn.conv2d(x, W); z = R.nn.relu(y); p = R.nn.max_pool2d(z)
After:   xl = R.permute_dims(x, axes=(0, 2, 3, 1))
         yl = R.nn.conv2d(xl, W', data_layout="NHWC", kernel_layout="HWIO"); zl = R.relu(yl)
         pl = R.nn.max_pool2d(zl, layout="NHWC"); p = R.permute_dims(pl, axes=(0, 3, 1, 2))

Channels side by side in memory are vectors for every kernel: products read and write rows, windows
slide over whole vectors. The order spreads from the operators that profit to what uses their
results (`layout_rules`), and stops where an operator has no rule: there a layout change remains.
Permutations written in the model are layout changes like any other, and cancel; one that moves
axes of a single element is a view and costs nothing. A flattened tensor that only products with
constant weights read is flattened as it lies, and the weights' rows are permuted instead.

Decisions are made for regions, operators connected by tensors stored channels-last. With

    bytes    = what the layout changes of the region read and write,
    were     = what those of the model between its operators did before,
    profit   = FLOP / 200 + bytes of the result, of dense convolutions,

a region is converted when bytes < were + profit, or when both sides are 0. Profits are in bytes
moved: over channels-first data a dense convolution gathers its operand and scatters its result,
which was measured to cost a byte of copying per 200 operations and one per byte of the result.
Depthwise convolutions and pools are as fast in either order and follow their neighbours.
Symbolic sizes count as 128, or the nearest size allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from blockwright import ir
from blockwright.passes.context import PassContext
from blockwright.passes.layout.layout_regions import Region, describe, is_worth_it
from blockwright.passes.layout.layout_trial import Trial
from blockwright.passes.rewrite import map_graph_functions


class Decision(msgspec.Struct, frozen=True):
    """A trial with no region left that does not pay, and those that were given up."""

    trial: Trial
    rejected: Sequence[Region]


def decide(function: ir.GraphFunction) -> Decision:
    """Try with everything; leave regions that do not pay as they are, until all that remain do."""
    plain: set[ir.GraphVar] = set()
    rejected: list[Region] = []
    while True:
        trial = Trial(function, plain)
        trial.run()
        losing = [region for region in trial.regions() if not is_worth_it(region)]
        if not losing:
            return Decision(trial, rejected)
        rejected += [region for region in losing if region.profit]
        plain.update(var for region in losing for var in region.members)


def channels_last(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Store tensors channels-last where it pays; say where in `ctx.decisions`."""

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        decision = decide(function)
        regions = decision.trial.regions()
        lines = [f"{name}: {describe(r, True)}" for r in regions if r.profit or r.moved or r.were]
        lines += [f"{name}: {describe(r, False)}" for r in decision.rejected]
        ctx.decisions.setdefault("channels_last", []).extend(lines)
        return decision.trial.finish() if regions else function

    return map_graph_functions(module, one)
