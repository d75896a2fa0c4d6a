"""Which attention processes its keys in blocks, and of how many keys."""

from __future__ import annotations

from typing import Any

import pytest

from blockwright import ir
from blockwright.graph import GraphBuilder
from blockwright.ops.implementation import chosen as choice_of
from blockwright.ops.table import OPERATORS
from blockwright.passes import PassContext
from blockwright.passes.select.choose_implementations import choose_implementations
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
    """The number of keys in a block after the pass."""
    after = choose_implementations(module, PassContext(target, options))
    (call,) = ir.collect(after["main"], ir.GraphCall)
    choice = choice_of(OPERATORS["attention"], call.attrs)
    return choice and choice.parameters.block


def test_many_keys_come_in_blocks_and_the_choice_is_recorded() -> None:
    ctx = PassContext(MACHINE)
    after = choose_implementations(model(), ctx)
    (call,) = ir.collect(after["main"], ir.GraphCall)
    assert call.attrs["implementation"] == "split_kv(block=1024)"
    (line,) = ctx.decisions["choose_implementations"]
    assert line.startswith("attention: split_kv(block=1024); predicted: default ")
    assert ", split_kv(block=1024) " in line


def test_the_reason_for_one_softmax_is_recorded() -> None:
    ctx = PassContext(MACHINE)
    module = model(keys=2048)
    assert choose_implementations(module, ctx) is module
    (line,) = ctx.decisions["choose_implementations"]
    why = "keys, values and the scores of a tile stay in the caches"
    assert line == f"attention: default; not split_kv: {why}"


def test_caches_decide_how_many_keys_are_many() -> None:
    assert chosen(model(keys=16384)) is None
    large = Target(MACHINE, caches=(*CACHES[:2], Cache(256 << 20, shared_by=2)))
    assert chosen(model(keys=65536)) == 1024
    assert chosen(model(keys=65536), large) is None
    last = Target(MACHINE, caches=(*CACHES[:2], Cache(8 << 20, shared_by=2)))  # for keys, values
    assert chosen(model(keys=16384), last) == 1024


def test_a_block_divides_the_keys_and_is_longer_than_a_head() -> None:
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


def test_the_options_may_decide() -> None:
    assert chosen(model(), disabled_strategies=["attention"]) is None
    assert chosen(model(), disabled_implementations=["split_kv"]) is None


@pytest.mark.parametrize("rows", [20, 64, 300, 2048])
@pytest.mark.parametrize("keys", [32768, 65536, 131072])
@pytest.mark.parametrize("size", [32, 64, 128])
def test_blocks_are_predicted_to_be_faster_once_the_caches_are_too_small(
    rows: int, keys: int, size: int
) -> None:
    last = Target(MACHINE, caches=(*CACHES[:2], Cache(8 << 20, shared_by=2)))
    assert chosen(model(rows, keys, size=size, values=size), last) == 1024


@pytest.mark.parametrize(
    ("block", "code", "why"),
    [
        (1000, "BW419", r"65536 keys cannot be split into several blocks of 1000"),
        (65536, "BW419", r"cannot be split into several blocks of 65536"),
        (0, "BW419", r"a block has at least one key"),
        (True, "BW418", r"block=True is not int"),
    ],
)
def test_blocks_that_cannot_be_are_refused(block: Any, code: str, why: str) -> None:
    with pytest.raises(GraphError, match=why) as refused:
        model(implementation=f"split_kv(block={block})")
    assert refused.value.code == code
