"""A saved model: the same answers where only the base install is, or not even Blockwright."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blockwright as bw
from blockwright.runtime.artefact import FORMAT_VERSION

# What a base install lacks, and the rooms that loading must not need.
HIDE = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        parts = name.split(".")
        if parts[0] in HEAVY or parts[0] == "blockwright" and parts[1:2] and parts[1] in ROOMS:
            raise ModuleNotFoundError(name + " is hidden", name=name)
HEAVY = set(sys.argv[1].split(","))
ROOMS = set("ir arith target analysis script intrin interp schedule ops graph lower codegen build "
            "rules passes frontend api".split())
sys.meta_path.insert(0, Hidden())
"""
BASE = (
    HIDE
    + """
import gc, json, numpy as np, tvm_ffi, blockwright as bw
def resident(field):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(field))
data = np.load(sys.argv[3])
ids, mask = data["ids"], data["mask"]
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before = resident("VmRSS:")
exe = bw.load(sys.argv[2])
out = exe(ids, mask)
peak = resident("VmHWM:") - before
plan = exe.memory_plan
loaded = sorted(m for m in sys.modules if m.split(".")[0] in HEAVY)
assert type(out) is np.ndarray
np.save(sys.argv[4], out)
print(json.dumps({"peak": peak, "loaded": loaded, "weights": plan.packed_weight_bytes,
                  "activations": plan.activation_bytes(ids, mask)}))
"""
)
PLAIN = (
    HIDE
    + """
import numpy as np, tvm_ffi
module = tvm_ffi.load_module(sys.argv[2])
data = np.load(sys.argv[3])
out = module.main(tvm_ffi.from_dlpack(data["ids"]), tvm_ffi.from_dlpack(data["mask"]))
np.save(sys.argv[4], np.from_dlpack(out))
try:
    module.main(tvm_ffi.from_dlpack(data["ids"]))
except TypeError as error:
    print(error)
"""
)


@pytest.fixture(scope="module")
def question(encoder_exe: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Inputs in a file, and the answer of the fresh compilation."""
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 100, (64, 64))
    mask = (np.arange(64) < rng.integers(1, 65, (64, 1))).astype(np.int64)
    path = tmp_path_factory.mktemp("question") / "inputs.npz"
    np.savez(path, ids=ids, mask=mask)
    return path, encoder_exe(ids, mask)


def test_a_base_install_gives_the_same_bits_within_the_promised_memory(
    encoder_artefact: Path, question: Any, python: Callable[..., str], tmp_path: Path
) -> None:
    inputs, expected = question
    hidden = "torch,transformers,llvmlite,scipy"
    output = python(BASE, hidden, encoder_artefact, inputs, tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    report = json.loads(output)
    assert report["loaded"] == []
    bound = report["weights"] + report["activations"] + 16 * 2**20
    assert report["peak"] <= bound


def test_plain_ffi_runs_the_artefact_without_blockwright(
    encoder_artefact: Path, question: Any, python: Callable[..., str], tmp_path: Path
) -> None:
    inputs, expected = question
    library = tmp_path / "encoder.so"
    shutil.copyfile(encoder_artefact, library)
    hidden = "blockwright,torch,transformers,llvmlite"
    output = python(PLAIN, hidden, library, inputs, tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), expected)
    assert "BW701" in output


def test_the_memory_plan_is_what_a_call_takes(encoder_exe: Any, encoder_artefact: Path) -> None:
    loaded = bw.load(encoder_artefact)
    ids = np.ones((3, 8), np.int64)
    plan = loaded.memory_plan
    assert plan.activation_bytes(ids, ids) == encoder_exe.memory_plan.activation_bytes(ids, ids)
    larger = np.ones((6, 16), np.int64)
    assert plan.activation_bytes(larger, larger) > plan.activation_bytes(ids, ids) > 0
    assert plan.packed_weight_bytes < encoder_artefact.stat().st_size


def test_a_loaded_model_says_that_it_cannot_be_profiled(encoder_artefact: Path) -> None:
    ids = np.ones((3, 8), np.int64)
    with pytest.raises(bw.OptionError) as caught:
        bw.load(encoder_artefact).profile(ids, ids)
    assert caught.value.code == "BW907"


def test_saving_twice_writes_the_same_bytes(encoder_exe: Any, tmp_path: Path) -> None:
    size = encoder_exe.save(tmp_path / "one.bwx")
    encoder_exe.save(tmp_path / "two.bwx")
    data = (tmp_path / "one.bwx").read_bytes()
    assert len(data) == size
    assert data == (tmp_path / "two.bwx").read_bytes()


def refused(path: Path) -> str:
    with pytest.raises(bw.ArtefactError) as caught:
        bw.load(path)
    assert str(path) in caught.value.message
    return str(caught.value.code)


def test_truncated_artefacts_are_refused(encoder_artefact: Path, tmp_path: Path) -> None:
    data = encoder_artefact.read_bytes()
    path = tmp_path / "short.bwx"
    for size in (0, 10, 100, 4096, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        assert refused(path) in ("BW800", "BW801", "BW804")
    path.write_bytes(data[: len(data) // 2])
    assert refused(path) == "BW801"
    path.write_bytes(data + b"\0")
    assert refused(path) == "BW804"


def test_every_flipped_byte_is_noticed(encoder_artefact: Path, tmp_path: Path) -> None:
    data = encoder_artefact.read_bytes()
    path = tmp_path / "flipped.bwx"
    rng = np.random.default_rng(3)
    places = [4, 18, 40, 64, 200, len(data) - 1, *rng.integers(0, len(data), 60).tolist()]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert refused(path).startswith("BW80")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x7fELF" + bytes(200), b"PK\x03\x04" * 99])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.bwx"
    path.write_bytes(content)
    assert refused(path) in ("BW800", "BW801")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "absent.bwx") == "BW805"
    assert refused(tmp_path) == "BW805"


def test_an_artefact_of_a_newer_format_is_refused(encoder_artefact: Path, tmp_path: Path) -> None:
    data = bytearray(encoder_artefact.read_bytes())
    note = data.index(b"Blockwright\0") + len("Blockwright\0")
    struct.pack_into("<I", data, note, FORMAT_VERSION + 1)
    path = tmp_path / "newer.bwx"
    path.write_bytes(data)
    assert refused(path) == "BW802"


def test_an_artefact_for_another_processor_is_refused(
    encoder_exe: Any, encoder_artefact: Path, tmp_path: Path
) -> None:
    data = bytearray(encoder_artefact.read_bytes())
    struct.pack_into("<H", data, 18, 183)  # the machine number of AArch64
    path = tmp_path / "arm.bwx"
    path.write_bytes(data)
    assert refused(path) == "BW803"

    import msgspec

    metadata = msgspec.structs.replace(encoder_exe.metadata, features=("avx2", "amx-tile", "nope"))
    encoder_exe.library.save(path, metadata)
    with pytest.raises(bw.ArtefactError) as caught:
        bw.load(path)
    assert caught.value.code == "BW803"
    assert "nope" in caught.value.message


def test_an_artefact_cannot_be_written_just_anywhere(encoder_exe: Any, tmp_path: Path) -> None:
    with pytest.raises(bw.ArtefactError) as caught:
        encoder_exe.save(tmp_path / "absent" / "model.bwx")
    assert caught.value.code == "BW805"
    assert not list(tmp_path.iterdir())
