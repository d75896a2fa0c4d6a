"""Which attention passes its keys in pieces, and of how many keys."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.passes import PassContext
from blockwright.passes.select.choose_split_kv import choose_split_kv
from blockwright.support import GraphError
from blockwright.target import Cache, Target

CACHES = (Cache(32 << 10), Cache(1 << 20), Cache(32 << 20, shared_by=2))
MACHINE = Target("x86-64-v4", num_threads=2, caches=CACHES)


def model(
    rows: Any = 2048,
    keys: Any = 65536,
    heads: int = 2,
    size: Any = 64,
    values: Any = 64,
    **attrs: Any,
) -> ir.IRModule:
    builder = GraphBuilder()
    shapes = {"q": (rows, size), "k": (keys, size), "v": (keys, values)}
    params = [builder.param(name, _info((1, heads, *shape))) for name, shape in shapes.items()]
    out = builder.op("attention", *params, **{"scale": 0.125, **attrs})
    return ir.IRModule({"main": builder.finish("main", out)})


def _info(shape: tuple[Any, ...]) -> ir.TensorInfo:
    sizes = tuple(ir.as_expr(d, ir.dtype_of("int64")) for d in shape)
    return ir.TensorInfo(sizes, ir.dtype_of("float32"))


def chosen(module: ir.IRModule, target: Target = MACHINE, **options: Any) -> int | None:
    after = choose_split_kv(module, PassContext(target, options))
    (call,) = ir.collect(after["main"], ir.GraphCall)
    return call.attrs.get("kv_block")


def test_many_keys_come_in_pieces_and_the_choice_is_told() -> None:
    ctx = PassContext(MACHINE)
    after = choose_split_kv(model(), ctx)
    (call,) = ir.collect(after["main"], ir.GraphCall)
    assert call.attrs["kv_block"] == 1024
    (line,) = ctx.decisions["choose_split_kv"]
    assert "blocks of 1024 keys" in line


def test_caches_decide_how_many_keys_are_many() -> None:
    assert chosen(model(keys=16384)) is None
    half = Target(MACHINE, caches=(CACHES[0], Cache(1 << 19), CACHES[2]))  # for the scores
    assert chosen(model(keys=16384), half) == 1024
    last = Target(MACHINE, caches=(*CACHES[:2], Cache(8 << 20, shared_by=2)))  # for keys, values
    assert chosen(model(keys=16384), last) == 1024


def test_a_piece_divides_the_keys_and_is_longer_than_a_head() -> None:
    assert chosen(model(keys=768 * 101)) == 768
    assert chosen(model(keys=65537)) is None
    assert chosen(model(size=512)) == 1024
    assert chosen(model(values=1024)) is None


def test_few_rows_and_what_is_not_known_have_one_softmax() -> None:
    name = ir.var("n", "int64")
    for whole in (model(rows=15), model(rows=name), model(keys=name), model(size=1)):
        assert chosen(whole) is None


def test_keys_beyond_the_rows_of_a_causal_form_do_not_count() -> None:
    assert chosen(model(is_causal=True)) is None
    assert chosen(model(rows=65536, is_causal=True)) == 1024


def test_a_call_or_the_options_may_decide() -> None:
    assert chosen(model(kv_block=256)) == 256
    assert chosen(model(kv_block=None)) is None
    assert chosen(model(), disabled_strategies=["attention"]) is None


@pytest.mark.parametrize(
    ("piece", "why"),
    [
        (1000, r"65536 keys cannot be split into several blocks of 1000"),
        (65536, r"cannot be split into several blocks of 65536"),
        (0, r"kv_block=0 is not a positive number of keys"),
        (True, r"kv_block is True, which is not an integer"),
    ],
)
def test_pieces_that_cannot_be_are_refused(piece: Any, why: str) -> None:
    with pytest.raises(GraphError, match=why) as refused:
        model(kv_block=piece)
    assert refused.value.code
