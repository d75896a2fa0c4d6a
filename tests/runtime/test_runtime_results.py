"""How results nest, and what is written must not share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockwright.runtime.results import flatten, require_apart, unflatten
from blockwright.support import ArgumentError

LEAF = st.one_of(st.just(0), st.none())
TREES = st.recursive(
    LEAF,
    lambda tree: st.one_of(
        st.fixed_dictionaries({"tuple": st.lists(tree, max_size=3)}),
        st.fixed_dictionaries({"list": st.lists(tree, max_size=3)}),
        st.fixed_dictionaries({"dict": st.dictionaries(st.sampled_from("abc"), tree, max_size=3)}),
    ),
    max_leaves=8,
)


def numbered(tree: Any, names: list[int]) -> Any:
    """The tree with its results numbered in order."""
    if tree is None:
        return None
    if tree == 0:
        names.append(len(names))
        return names[-1]
    kind, content = next(iter(tree.items()))
    if kind == "dict":
        return {kind: {key: numbered(item, names) for key, item in content.items()}}
    return {kind: [numbered(item, names) for item in content]}


@given(TREES)
def test_what_a_call_returns_is_taken_apart_again(shape: Any) -> None:
    names: list[int] = []
    tree = numbered(shape, names)
    results = [f"result {name}" for name in names]
    assert flatten(tree, unflatten(tree, results), len(results)) == results


def check(*arrays: np.ndarray) -> None:
    require_apart(enumerate(arrays), lambda index: f"result {index + 1}")


def refusal(*arrays: np.ndarray) -> str:
    with pytest.raises(ArgumentError) as caught:
        check(*arrays)
    assert caught.value.code == "BW706"
    return caught.value.message


def test_arrays_that_meet() -> None:
    room = np.zeros((6, 8), "f4")
    check(room[:3], room[3:])
    check(room[:, ::2], room[:, 1::2])
    check(room[:, :4], room[:, 4:])
    check(room[:0], room)
    message = "result 2: it is written and overlaps result 1"
    assert refusal(room[:4], room[3:]) == message
    assert refusal(room[:, ::2], room[:, 2:4]) == message
    assert refusal(room.view("i2"), room) == message
    assert (
        refusal(room[:1], room[1:2], room[1:4]) == "result 3: it is written and overlaps result 2"
    )
    once = np.lib.stride_tricks.as_strided(room, (5, 8), (0, 4))
    assert refusal(once) == "result 1: its own elements share memory"
    check(once[:1])


@pytest.mark.parametrize("given", [3, "text", None, np.zeros(2)])
def test_other_things_than_the_structure(given: Any) -> None:
    for tree in ({"tuple": [0]}, {"list": [0]}, {"dict": {"a": 0}}):
        with pytest.raises(ArgumentError, match=r"out is .*, where the model gives a") as caught:
            flatten(tree, given, 1)
        assert caught.value.code == "BW702"
