"""ChooseKeyPieces: split attention over more keys than the caches hold into blocks of keys.

Before:  y = R.attention(q, k, v)
After:   y = R.attention(q, k, v, kv_block=1024)

Each block has its own softmax; `ops/attention.py` describes how they are combined, and
`strategies/cpu/attention_cost.py` when this pays on the target. The numbers of queries and keys
and the head sizes must be constants, and the block size must divide the number of keys. A call with
an explicit `kv_block=…` is left alone. Disabling the attention strategy disables the pass.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.context import PassContext, graph_pass
from blockwright.passes.rewrite import map_calls
from blockwright.strategies.cpu.attention import STRATEGY
from blockwright.strategies.cpu.attention_cost import kv_block_size
from blockwright.target import Target


@graph_pass
def choose_split_kv(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Set `kv_block` where the cost model predicts a gain."""
    if STRATEGY.name in ctx.options.get("disabled_strategies", ()) or ctx.target.kind != "cpu":
        return module

    def chosen(name: str, call: ir.GraphCall) -> ir.GraphCall:
        piece = 0 if "kv_block" in call.attrs else _piece(call, ctx.target)
        if not piece:
            return call
        line = f"{name}: blocks of {piece} keys"
        ctx.decisions.setdefault("choose_split_kv", []).append(line)
        return call.replace(attrs={**call.attrs, "kv_block": piece})

    return map_calls(module, "attention", chosen)


def _piece(call: ir.GraphCall, target: Target) -> int:
    queries, keys, values = (argument.tensor_info.shape for argument in call.args[:3])
    if queries is None or keys is None or values is None:
        return 0
    sizes = [ir.const_int(size) for size in (queries[2], keys[2], keys[3], values[3])]
    rows, length, *heads = [size for size in sizes if size is not None]
    if None in sizes:
        return 0
    return kv_block_size(target, rows, length, heads, bool(call.attrs.get("is_causal")))
