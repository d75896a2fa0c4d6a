"""Attention of ONNX Runtime: encoders, decoders with caches, rotary positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import blockwright as bw

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import helper, numpy_helper

from tests.onnx_nodes import CONTRIB, ONLY_OURS, Array, Drawn, Model, Node, answers, node, number

_DRAWN = Drawn()
F = _DRAWN.floats
BATCH, LENGTH, WIDTH, HEADS = 2, 4, 16, 2
_TWO: dict[str, Any] = {"num_heads": HEADS}
_CAUSAL = {**_TWO, "unidirectional": 1}
_BOTH, _THREE = (True, True), (True, True, True)


def whole(value: Any) -> Array:
    return np.array(value, "int32")


def ones(*shape: int) -> Array:
    """Zeros and ones."""
    return _DRAWN.random.integers(0, 2, shape).astype("int32")


# -------------------------------------------------------------------------------------- projections

_X, _WEIGHT, _BIAS = F(BATCH, LENGTH, WIDTH), F(WIDTH, 3 * WIDTH) * 0.3, F(3 * WIDTH)
_PADDED = whole([[1, 1, 1, 0], [1, 0, 0, 0]])
_PAST = F(2, BATCH, HEADS, 3, WIDTH // HEADS)


def _attention(*more: Array | None, attrs: Any = _TWO, **options: Any) -> Node:
    return node("Attention", _X, _WEIGHT, _BIAS, *more, attrs=attrs, **options)


ATTENTION = (
    _attention(),
    _attention(_PADDED),
    _attention(whole([[1, 1, 1, 0], [0, 0, 0, 0]]), attrs={**_TWO, "mask_filter_value": -3.0}),
    _attention(whole([[1, 1, 1, 0], [0, 0, 0, 0]]), tolerance=2e-3),
    _attention(whole([3, 1])),
    _attention(whole([3, 4, 1, 2])),
    _attention(ones(BATCH, LENGTH, LENGTH), tolerance=2e-3),
    _attention(attrs=_CAUSAL, outputs=_BOTH),
    _attention(_PADDED, attrs=_CAUSAL),
    _attention(_PADDED, None, F(1, HEADS, LENGTH, LENGTH)),
    _attention(attrs={**_TWO, "scale": 0.7}),
    _attention(None, _PAST, outputs=_BOTH),
    _attention(ones(BATCH, LENGTH + 3), _PAST, attrs=_CAUSAL, outputs=_BOTH, tolerance=2e-3),
    _attention(whole([5, 7]), _PAST, attrs=_CAUSAL, outputs=_BOTH),
    node(
        *("Attention", _X, F(WIDTH, 28), F(28)),
        attrs={**_TWO, "qkv_hidden_sizes": [8, 8, 12]},
    ),
)

_Q, _K, _V = F(BATCH, LENGTH, WIDTH), F(BATCH, 5, WIDTH), F(BATCH, 5, 12)
_OLD_KEYS, _OLD_VALUES = F(BATCH, HEADS, 3, 8), F(BATCH, HEADS, 3, 8)


def _multi(*inputs: Array | None, attrs: Any = _TWO, **options: Any) -> Node:
    return node("MultiHeadAttention", *inputs, attrs=attrs, **options)


MULTI_HEAD = (
    _multi(_Q, _K, _V),
    _multi(_Q, _K, _V, F(WIDTH + WIDTH + 12)),
    _multi(_Q, _K, _V, None, whole([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]])),
    _multi(_Q, _K, _V, None, whole([3, 4])),
    _multi(_Q, _K, _V, None, ones(BATCH, LENGTH, 5), tolerance=2e-3),
    _multi(_Q, _K, _V, None, None, F(BATCH, HEADS, LENGTH, 5)),
    _multi(_Q, _K, _V, None, None, F(1, 1, LENGTH, 5), attrs={**_TWO, "scale": 0.4}),
    _multi(_Q, _Q, _Q, attrs=_CAUSAL),
    _multi(_Q, _Q, _Q, None, None, None, _OLD_KEYS, _OLD_VALUES, attrs=_CAUSAL, outputs=_THREE),
    _multi(
        *(_Q, _Q, _Q, F(3 * WIDTH), ones(BATCH, 7), F(1, HEADS, LENGTH, 7)),
        *(_OLD_KEYS, _OLD_VALUES),
        outputs=_THREE,
        tolerance=2e-3,
    ),
    _multi(_Q, _K, _K, outputs=_THREE),
    _multi(_Q, F(BATCH, HEADS, 5, 8), F(BATCH, HEADS, 5, 8)),
)


@pytest.mark.parametrize("nodes", [ATTENTION, MULTI_HEAD])
def test_nodes_compute_what_onnx_runtime_does(nodes: tuple[Node, ...]) -> None:
    Model(nodes).interpreted()


@pytest.mark.slow
def test_lengths_may_be_symbols_of_their_own() -> None:
    """A mask has a length that calls check to be that of the keys."""
    projected = {0: ["b", "s", WIDTH], 3: ["c", "t"], 4: [2, "b", HEADS, "p", 8]}
    given = {k: ["b", "s", WIDTH] for k in range(3)}
    cached = {k: ["b", HEADS, "p", 8] for k in (6, 7)}
    nodes = (
        ATTENTION[12]._replace(shapes=projected),
        MULTI_HEAD[9]._replace(shapes={**given, 4: ["b", "u"], 5: [1, HEADS, "s", "w"], **cached}),
    )
    Model(nodes[:1]).interpreted()
    model = Model(nodes[1:])
    exe = model.compiled()
    longer = [*model.arguments]
    longer[4] = ones(BATCH, 9)
    with pytest.raises(bw.BlockwrightError, match="the mask has not the lengths"):
        exe(*longer)


def test_queries_keys_and_values_side_by_side() -> None:
    """The form of code for GPUs, (batch, length, heads, 3, size), is that of three tensors."""
    parts = [F(BATCH, LENGTH, HEADS, 8) for _ in range(3)]
    apart = _multi(*(p.reshape(BATCH, LENGTH, WIDTH) for p in parts))
    packed = _multi(np.stack(parts, 3))
    values = _multi(parts[0].reshape(BATCH, LENGTH, WIDTH), np.stack(parts[1:], 3))
    model = Model([packed, values])
    found = bw.interpret(bw.import_model(model.proto, fallback="error"), *model.arguments)
    (wanted,) = answers(Model([apart]).proto, Model([apart]).arguments)
    for ours in found:
        np.testing.assert_allclose(ours, wanted, rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------------------------------- caches

SHARED, SIZE = 2, 16
_GROUPS: dict[str, Any] = {"num_heads": 4, "kv_num_heads": SHARED}
_TURNED: dict[str, Any] = {**_GROUPS, "do_rotary": 1}
_COS, _SIN = F(20, SIZE // 2), F(20, SIZE // 2)
_QUERY, _KEY, _VALUE = F(2, 4, 4 * SIZE), F(2, 4, 2 * SIZE), F(2, 4, 2 * SIZE)
_NEXT = [v[:, :1] for v in (_QUERY, _KEY, _VALUE)]
_CACHE = [F(2, SHARED, 6, SIZE), F(2, SHARED, 6, SIZE)]


def _grouped(
    qkv: list[Any], cache: list[Any], ends: list[int], total: int, *more: Any, **attrs: Any
) -> Node:
    """A node for sequences with `ends` + 1 tokens, the most of which are `total`."""
    dtype = qkv[0].dtype
    rotary = [v.astype(dtype) for v in (_COS, _SIN)] if attrs.pop("turned", True) else [None, None]
    options = {**(_GROUPS if rotary[0] is None else _TURNED), **attrs}
    return node(
        *("GroupQueryAttention", *qkv, *cache, whole(ends), whole(total), *rotary, *more),
        attrs=options,
        outputs=_THREE,
        known=[6],
        tolerance=5e-3 if dtype == np.float16 else 2e-5,
    )


_FRESH: list[Any] = [None, None]
_PROMPT: list[Any] = [_QUERY, _KEY, _VALUE]
_PLACES = np.array([[2, 3, 4, 5], [5, 1, 1, 2]])
PROMPTS = (
    _grouped(_PROMPT, _FRESH, [3, 1], 4, turned=False),
    _grouped(_PROMPT, _FRESH, [3, 1], 4),
    _grouped(_PROMPT, _FRESH, [3, 1], 4, rotary_interleaved=1),
    _grouped([v.astype("float16") for v in _PROMPT], _FRESH, [3, 1], 4),
    _grouped([F(2, 4, 8 * SIZE), None, None], _FRESH, [3, 3], 4),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, local_window_size=2),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, softcap=0.8),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, smooth_softmax=1),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, None, F(1, 4, 4, 4), turned=False),
    _grouped(
        *(_PROMPT, _FRESH, [3, 3], 4, None, F(2, 1, 4, 4), F(4)),
        softcap=1.5,
        scale=0.4,
        local_window_size=3,
    ),
    _grouped(_PROMPT, _FRESH, [3, 1], 4, causal=0, turned=False),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, _PLACES),
    _grouped(_PROMPT, _CACHE, [3, 2], 4),
)
STEPS = (
    _grouped(_NEXT, _CACHE, [6, 6], 7, turned=False),
    _grouped(_NEXT, _CACHE, [6, 3], 7),
    _grouped(_NEXT, _CACHE, [4, 3], 5),
    _grouped(_NEXT, _CACHE, [6, 3], 7, local_window_size=3),
    _grouped(_NEXT, _CACHE, [6, 3], 7, None, F(2, 1, 1, 7)),
    _grouped(_NEXT, _CACHE, [6, 3], 7, np.array([[2], [9]])),
    _grouped([v[:1, :3] for v in _PROMPT], [v[:1] for v in _CACHE], [8], 9),
)


@pytest.mark.parametrize("nodes", [PROMPTS, STEPS])
def test_caches_hold_what_onnx_runtime_stores(nodes: tuple[Node, ...]) -> None:
    Model(nodes).interpreted()


def decoder() -> Any:
    """A layer as exporters write it: lengths follow from the attention mask."""
    made = helper.make_node
    nodes = [
        made("ReduceSum", ["mask", "one"], ["counts"], keepdims=0),
        made("Sub", ["counts", "unit"], ["last"]),
        made("Cast", ["last"], ["ends"], to=6),
        made("Shape", ["mask"], ["shape"]),
        made("Gather", ["shape", "one"], ["whole"]),
        made("Cast", ["whole"], ["total"], to=6),
        made(
            "GroupQueryAttention",
            ["q", "k", "v", "old_keys", "old_values", "ends", "total", "cos", "sin"],
            ["y", "keys", "values"],
            domain=CONTRIB,
            **_TURNED,
        ),
    ]
    info = helper.make_tensor_value_info
    cache = ["b", SHARED, "p", SIZE]
    inputs = [
        info("q", 1, ["b", "s", 4 * SIZE]),
        info("k", 1, ["b", "s", 2 * SIZE]),
        info("v", 1, ["b", "s", 2 * SIZE]),
        info("mask", 7, ["b", "t"]),
        info("old_keys", 1, cache),
        info("old_values", 1, cache),
    ]
    constants = {"one": number([1], "int64"), "unit": number(1, "int64"), "cos": _COS, "sin": _SIN}
    tensors = [numpy_helper.from_array(v, n) for n, v in constants.items()]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "keys", "values")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.slow
def test_a_decoder_runs_a_prompt_and_then_steps() -> None:
    proto = decoder()
    exe = bw.compile(proto, options=ONLY_OURS)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    empty = np.zeros((2, SHARED, 0, SIZE), "float32")
    past: list[Array] = [empty, empty]
    for step in range(3):
        given = _PROMPT if step == 0 else [v + step for v in _NEXT]
        arguments = [*given, mask, *past]
        wanted = answers(proto, arguments)
        found = exe(*arguments)
        used = mask.astype(bool) if step == 0 else np.ones((2, 1), bool)
        np.testing.assert_allclose(found[0][used], wanted[0][used], rtol=2e-5, atol=2e-5)
        for ours, theirs in zip(found[1:], wanted[1:], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
        past = wanted[1:]
        mask = np.concatenate([mask, np.ones((2, 1), "int64")], 1)


# ------------------------------------------------------------------------------------------- rotary

_FLAT, _AT = F(2, 3, 32), np.array([[0, 1, 2], [4, 5, 3]])
_TABLES = [F(9, 4), F(9, 4)]
_PARTLY = {"num_heads": 4, "rotary_embedding_dim": 4}


def _rotary(*inputs: Array, **options: Any) -> Node:
    return node("RotaryEmbedding", *inputs, **options)


def test_positions_rotate_pairs_of_elements() -> None:
    nodes = [
        each
        for attrs in ({}, {"interleaved": 1})
        for each in (
            _rotary(_FLAT, _AT, *_TABLES, attrs=attrs),
            _rotary(_FLAT, np.array([2]), *_TABLES, attrs=attrs),
            _rotary(F(2, 4, 3, 8), _AT, *_TABLES, attrs=attrs),
            _rotary(_FLAT, _AT, F(9, 2), F(9, 2), attrs={**attrs, **_PARTLY}),
        )
    ]
    half = [v.astype("float16") for v in (_FLAT, *_TABLES)]
    sizes = {0: ["b", "s", 32], 1: ["c", "t"]}
    nodes += [
        _rotary(half[0], _AT, *half[1:], tolerance=3e-3),
        _rotary(_FLAT, _AT, *_TABLES, shapes=sizes),
        _rotary(_FLAT, np.array([2]), *_TABLES, shapes={0: ["b", "s", 32]}),
    ]
    Model(nodes).interpreted()
    Model(nodes[4:5]).compiled()


# ---------------------------------------------------------------------------- what is not converted

UNCOVERED = (
    node("Attention", _X, _WEIGHT, _BIAS, attrs={**_TWO, "do_rotary": 1}),
    _multi(_Q, _K, _V, None, None, F(BATCH, HEADS, LENGTH, 6)),
    _multi(_Q, _K, _V, attrs=_CAUSAL),
    _grouped(_PROMPT, _FRESH, [3, 3], 4, sliding_window_cache=1, local_window_size=4),
    _grouped(_PROMPT, _FRESH, [3, 3], 4)._replace(known=()),
    _rotary(_FLAT, _AT, *_TABLES, attrs={"scale": 0.5}),
)


@pytest.mark.parametrize("place", range(len(UNCOVERED)))
def test_what_is_not_converted_is_named(place: int) -> None:
    each = UNCOVERED[place]
    with pytest.raises(bw.ImporterError, match=f"{each.op} node0: .*not covered") as caught:
        bw.import_model(Model([each]).proto, fallback="error")
    assert caught.value.code == "BW501"
    assert "fallback" in (caught.value.help or "")


def test_lengths_known_only_at_run_time_are_left_to_onnx_runtime() -> None:
    """The total length decides the size of the caches."""
    model = Model([UNCOVERED[4]])
    with pytest.warns(bw.BlockwrightWarning, match="BW513"):
        exe = bw.compile(model.proto)
    model.judged(exe(*model.arguments))
    assert [operator.name for operator in exe.fallbacks] == ["com.microsoft.GroupQueryAttention"]


def test_a_past_beyond_the_cache_is_refused() -> None:
    """Its elements would be those of the next head or text."""
    cache = [2, 2, "p", 4]
    tokens = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "old_keys", "old_values", "ends", "total"],
        ["y", "keys", "values"],
        domain=CONTRIB,
        num_heads=2,
        kv_num_heads=2,
    )
    info = helper.make_tensor_value_info
    inputs = [
        *(info(name, 1, [2, 1, 8]) for name in "qkv"),
        *(info(name, 1, cache) for name in ("old_keys", "old_values")),
        info("ends", 6, [2]),
    ]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "keys", "values")]
    imports = [helper.make_opsetid("", 18), helper.make_opsetid(CONTRIB, 1)]
    total = [numpy_helper.from_array(np.array([6], "int32"), "total")]
    graph = helper.make_graph([tokens], "decoder", inputs, outputs, total)
    exe = bw.compile(helper.make_model(graph, opset_imports=imports, ir_version=9))
    given = [*(F(2, 1, 8) for _ in "qkv"), *(F(2, 2, 3, 4) for _ in range(2))]
    keys = exe(*given, whole([3, 3]))[1]
    np.testing.assert_array_equal(keys[:, :, :3], given[3])
    with pytest.raises(bw.ArgumentError) as caught:
        exe(*given, whole([5, 3]))
    assert caught.value.code == "BW708"
