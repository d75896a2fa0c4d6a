"""A compilation collects garbage rarely, and leaves the collector as its caller had it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import blockwright as bw
from blockwright.support.garbage import few_collections


@pytest.fixture
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("threshold")
def test_collections_are_rare_until_the_last_block_ends() -> None:
    gc.set_threshold(500, 7, 9)
    with few_collections:
        with few_collections:
            assert gc.get_threshold() == (1_000_000, 7, 9)
        assert gc.get_threshold() == (1_000_000, 7, 9)
    assert gc.get_threshold() == (500, 7, 9)


@pytest.mark.usefixtures("threshold")
@pytest.mark.parametrize("own", [(0, 5, 5), (5_000_000, 5, 5)])
def test_a_caller_who_collects_more_rarely_still_is_left_alone(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with few_collections:
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


@pytest.mark.usefixtures("threshold")
def test_a_compilation_that_fails_puts_the_collector_back() -> None:
    gc.set_threshold(500, 7, 9)
    with pytest.raises(bw.OptionError):
        bw.compile(3)
    assert gc.get_threshold() == (500, 7, 9)
