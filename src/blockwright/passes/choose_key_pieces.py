"""ChooseKeyPieces: attention over more keys than caches hold passes them in pieces.

Before:  y = R.attention(q, k, v)
After:   y = R.attention(q, k, v, keys_at_once=1024)

Each piece has a softmax of its own; `ops/attention.py` says how they are put together, and
`rules/attention_model.py` when that pays on the target. The numbers of queries and keys and the
sizes of heads must be known, and a piece must divide the keys. A call that says `keys_at_once=…`
itself is left alone; disabling the rule of attention leaves all calls whole.
"""

from __future__ import annotations

from blockwright import ir
from blockwright.passes.context import PassContext
from blockwright.passes.rewrite import flat_function, map_graph_functions
from blockwright.rules.attention import RULE
from blockwright.rules.attention_model import keys_at_once
from blockwright.target import Target


def choose_key_pieces(module: ir.IRModule, ctx: PassContext) -> ir.IRModule:
    """Set `keys_at_once` where it pays."""
    if RULE.name in ctx.options.get("disabled_rules", ()) or ctx.target.kind != "cpu":
        return module

    def one(name: str, function: ir.GraphFunction) -> ir.GraphFunction:
        bindings = [_chosen(binding, ctx) for binding in function.bindings]
        same = all(a is b for a, b in zip(bindings, function.bindings, strict=True))
        return function if same else flat_function(function, bindings)

    return map_graph_functions(module, one)


def _chosen(binding: ir.Binding, ctx: PassContext) -> ir.Binding:
    if not isinstance(binding, ir.VarBinding):
        return binding
    call = binding.value
    if not isinstance(call, ir.GraphCall) or not isinstance(call.op, ir.OpRef):
        return binding
    if call.op.name != "attention" or "keys_at_once" in call.attrs:
        return binding
    piece = _piece(call, ctx.target)
    if not piece:
        return binding
    line = f"{binding.var.name}: {piece} keys at once"
    ctx.decisions.setdefault("choose_key_pieces", []).append(line)
    return binding.replace(value=call.replace(attrs={**call.attrs, "keys_at_once": piece}))


def _piece(call: ir.GraphCall, target: Target) -> int:
    queries, keys, values = (argument.tensor_info.shape for argument in call.args[:3])
    if queries is None or keys is None or values is None:
        return 0
    sizes = [ir.const_int(size) for size in (queries[2], keys[2], keys[3], values[3])]
    rows, length, *heads = [size for size in sizes if size is not None]
    if None in sizes:
        return 0
    return keys_at_once(target, rows, length, heads, bool(call.attrs.get("is_causal")))
