"""Objects of isl: results of calls, what a failure says, and when memory is given back."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest

pytest.importorskip("islpy")

from blockwright.support import OptionError
from blockwright.verify import isl
from blockwright.verify.isl import library


class _Watched(isl.Context):
    __slots__ = ("__weakref__",)


def test_operands_stay_as_they_are() -> None:
    context = isl.Context()
    first, second = isl.Set("{ [i] : 0 <= i < 9 }", context), isl.Set("{ [i] : 5 <= i }", context)
    both = first.intersect(second)
    assert str(both) == "{ [i] : 5 <= i <= 8 }"
    assert str(first) == "{ [i] : 0 <= i <= 8 }"
    assert both.is_subset(second)
    assert not second.is_subset(both)


def test_parts_of_relations() -> None:
    pairs = isl.Map("[n] -> { S[i] -> A[floor(i/2)] : 0 <= i < n }", isl.Context())
    assert pairs.target() == "A"
    assert pairs.to("B").target() == "B"
    assert isl.Map("{ [i] -> [i] }", pairs.context).target() == ""
    assert pairs.range().parameters() == ["n"]
    assert len(pairs.divisions()) == 1
    assert [str(one) for one in pairs.to_union_map().maps()] == [str(pairs)]
    least = pairs.domain().params().lexmin().sample_point()
    assert least.coordinate(isl.Dim.PARAM, 0) == 1


def test_a_failure_says_which_call_and_why() -> None:
    context = isl.Context()
    one, two = isl.Set("{ A[i] }", context), isl.Set("{ B[i, j] }", context)
    with pytest.raises(isl.Error, match="isl_set_intersect: spaces") as caught:
        one.intersect(two)
    assert not caught.value.spent
    assert one.is_equal(one)  # the context goes on


def test_the_limit_of_operations() -> None:
    context = isl.Context()
    wide = isl.Set("[n] -> { [i, j] : 0 <= i < n and i <= 2 j < n }", context)
    context.reset_operations()
    context.set_max_operations(20)
    with pytest.raises(isl.Error, match="operations") as caught:
        wide.identity().apply_range(wide.identity()).domain().is_equal(wide)
    assert caught.value.spent
    with pytest.raises(isl.Error) as caught:
        isl.Set("{ [i] }", context)
    assert caught.value.spent
    assert context.reaches(10)
    assert not context.reaches(1000)


def test_a_context_lives_as_long_as_its_objects() -> None:
    context = _Watched()
    gone = weakref.ref(context)
    kept = isl.Set("{ [i] : i >= 0 }", context)
    del context
    assert not kept.is_empty()
    assert gone() is not None
    del kept
    assert gone() is None


@pytest.mark.usefixtures("objects_set_aside")
def test_a_circle_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[int] = []
    gc.collect()
    monkeypatch.setattr(library, "free_context", freed.append)
    for _ in range(20):
        circle: list[object] = [context := isl.Context(), isl.Set("{ [i] }", context)]
        circle.append(circle)
    del circle, context
    gc.collect()
    assert len(freed) == 20


def test_what_is_not_installed_or_not_exported() -> None:
    with pytest.raises(OptionError, match="no_such_package") as caught:
        library.load("no_such_package")
    assert caught.value.code == "BW926"
    with pytest.raises(OptionError, match="no_such_function") as caught:
        library.declared(ctypes.CDLL(None), "no_such_function", None)
    assert caught.value.code == "BW926"
