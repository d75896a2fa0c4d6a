"""Arguments of `run` as text, results as lines and files."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from blockwright.cli.arrays import flatten, random_inputs, read_inputs, save_array, statistics
from blockwright.runtime.artefact import Parameter
from blockwright.support import OptionError

PARAMETERS = (
    Parameter("ids", dtype="int64", shape=("n", 8)),
    Parameter("scale", dtype="bfloat16", shape=()),
)


def test_files_become_arguments(tmp_path: Path) -> None:
    path = tmp_path / "a=b.npy"
    np.save(path, np.arange(8).reshape(1, 8))
    found = read_inputs([f"ids={path}"], PARAMETERS)
    np.testing.assert_array_equal(found["ids"], np.arange(8).reshape(1, 8))


def test_types_numpy_does_not_know_survive_a_file(tmp_path: Path) -> None:
    value = np.asarray([1.5, -2.0], ml_dtypes.bfloat16)
    path = save_array(tmp_path / "new", "scale", value)
    found = read_inputs([f"scale={path}"], PARAMETERS)["scale"]
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "objects.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(OptionError, match="cannot read") as caught:
        read_inputs([f"ids={path}"], PARAMETERS)
    assert caught.value.code == "BW921"


@pytest.mark.parametrize(
    ("text", "code"),
    [("ids", "BW920"), ("=x.npy", "BW920"), ("other=x.npy", "BW924"), ("ids=absent.npy", "BW921")],
)
def test_malformed_inputs(text: str, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_inputs([text], PARAMETERS)
    assert caught.value.code == code


def test_an_archive_is_no_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "many.npz", a=np.zeros(2))
    with pytest.raises(OptionError, match="several arrays"):
        read_inputs([f"ids={tmp_path / 'many.npz'}"], PARAMETERS)


def test_random_arguments() -> None:
    found = random_inputs(["ids=2x8", "scale=:float32"], PARAMETERS, 0, {})
    assert found["ids"].shape == (2, 8)
    assert found["ids"].dtype == np.int64
    assert set(np.unique(found["ids"])) <= {0, 1}
    assert found["scale"].shape == ()
    assert found["scale"].dtype == np.float32
    again = random_inputs(["ids=2x8", "scale="], PARAMETERS, 0, {})
    np.testing.assert_array_equal(again["ids"], found["ids"])
    assert again["scale"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ids=2*8", "BW920"),
        ("ids=2x", "BW920"),
        ("ids=-1x8", "BW920"),
        ("ids=2x8:float99", "BW922"),
        ("ids=2x8:object", "BW922"),
        ("ids=2x8:U5", "BW922"),
        ("ids=2x8:finfo", "BW922"),
        ("other=2", "BW924"),
    ],
)
def test_malformed_random_arguments(text: str, code: str) -> None:
    with pytest.raises(OptionError) as caught:
        random_inputs([text], PARAMETERS, 0, {})
    assert caught.value.code == code


def test_an_argument_is_given_once() -> None:
    with pytest.raises(OptionError, match="given twice"):
        random_inputs(["ids=1x8"], PARAMETERS, 0, {"ids": np.zeros((1, 8))})


def test_results_are_named_by_their_place() -> None:
    one, two, three = np.zeros(1), np.zeros(2), np.zeros(3)
    assert [n for n, _ in flatten(one, ["out"])] == ["out"]
    assert [n for n, _ in flatten((one,), ["out"])] == ["out"]
    nested = {"hidden": [one, None, two], "pooled": three}
    places = [(name, array.size) for name, array in flatten(nested, ["a", "b", "c"])]
    assert places == [("hidden.0", 1), ("hidden.2", 2), ("pooled", 3)]


def test_statistics() -> None:
    assert statistics(np.asarray([[1.0, 2.0, 6.0]], "float32")) == (
        "float32[1, 3]  min 1  mean 3  max 6"
    )
    assert statistics(np.asarray([1.0, np.nan, np.inf])).endswith("max 1  (2 not finite)")
    assert statistics(np.asarray([np.nan])).endswith("no finite element")
    assert statistics(np.zeros((0, 4), "int64")) == "int64[0, 4]  empty"
    assert statistics(np.asarray([True, False])) == "bool[2]  min 0  mean 0.5  max 1"


def test_unwritable_results(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError) as caught:
        save_array(tmp_path / "file", "x", np.zeros(1))
    assert caught.value.code == "BW915"


def test_random_arguments_that_no_memory_holds() -> None:
    with pytest.raises(OptionError, match="not enough memory") as caught:
        random_inputs(["ids=99999999999x999999"], PARAMETERS, 0, {})
    assert caught.value.code == "BW920"
