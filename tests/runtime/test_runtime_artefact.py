"""Artefacts: written whole or not at all, checked before they are loaded, mapped not copied."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from blockwright.codegen.abi.artefact import write_artefact
from blockwright.codegen.link.link import DataSegment, LinkOptions
from blockwright.codegen.llvm.binding import compile_object
from blockwright.runtime import artefact as reader
from blockwright.runtime.artefact import (
    ExportedFunction,
    Metadata,
    Parameter,
    load_artefact,
    read_metadata,
)
from blockwright.support import ArtefactError

WEIGHTS = np.random.default_rng(1).standard_normal(5000, np.float32)
METADATA = Metadata(
    version="0.1.0",
    triple="x86_64-unknown-linux-gnu",
    cpu="x86-64-v2",
    features=("sse4.2",),
    functions=(
        ExportedFunction(
            "get",
            parameters=(Parameter("i", "int"), Parameter("x", dtype="float32", shape=("n", 4))),
            dims={"n": (1, 64)},
            outputs_tree={"dict": [["a", 0]]},
        ),
    ),
    main="get",
    extra={"workspace": "n*4096"},
)


def program(version: int) -> list[tuple[str, bytes]]:
    text = f"""
        @weights = external global float
        define i32 @__tvm_ffi_get(ptr %self, ptr %args, i32 %n, ptr %result) {{
          %ip = getelementptr i8, ptr %args, i64 8
          %i = load i64, ptr %ip
          %p = getelementptr float, ptr @weights, i64 %i
          %f = load float, ptr %p
          %d = fpext float %f to double
          store i64 3, ptr %result
          %vp = getelementptr i8, ptr %result, i64 8
          store double %d, ptr %vp
          ret i32 0 }}
        define i32 @__tvm_ffi_version(ptr %self, ptr %args, i32 %n, ptr %result) {{
          store i64 1, ptr %result
          %vp = getelementptr i8, ptr %result, i64 8
          store i64 {version}, ptr %vp
          ret i32 0 }}"""
    return [("program", compile_object(text, METADATA.triple, "x86-64-v2", "", "host", "a test"))]


def save(path: Path, *, version: int = 1, metadata: Metadata = METADATA, **changes: Any) -> Path:
    options = LinkOptions(exports=["__tvm_ffi_get", "__tvm_ffi_version"])
    segments = [DataSegment("weights", changes.get("weights", WEIGHTS), 4096)]
    assert write_artefact(path, program(version), options, metadata, segments) == (
        path.stat().st_size
    )
    return path


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return save(tmp_path / "model.bwx")


def code_of(path: Path, verify: Any = "full") -> str:
    with pytest.raises(ArtefactError) as caught:
        read_metadata(path, verify=verify)
    assert str(path) in str(caught.value)
    return caught.value.code


def test_round_trip(saved: Path) -> None:
    loaded = load_artefact(saved)
    assert loaded.metadata == METADATA
    assert read_metadata(saved) == METADATA
    get = loaded.library.function("get")
    assert [get(i) for i in (0, 17, 4999)] == [float(WEIGHTS[i]) for i in (0, 17, 4999)]
    assert "get" in loaded.library
    assert "put" not in loaded.library
    with pytest.raises(KeyError):
        loaded.library.function("put")


def test_no_partial_file_is_left_behind(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "folder" / "model.bwx"
    with pytest.raises(ArtefactError) as caught:
        save(missing)
    assert caught.value.code == "BW805"
    save(tmp_path / "model.bwx")
    assert os.listdir(tmp_path) == ["model.bwx"]


def test_a_file_saved_again_under_its_name_is_really_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.bwx"
    loaded = [load_artefact(save(path, version=i)).library.function("version") for i in range(4)]
    assert [function() for function in loaded] == [0, 1, 2, 3]
    assert load_artefact(path).library.function("version")() == 3


def test_plain_ffi_without_this_package(saved: Path) -> None:
    shutil.copy(saved, saved.with_suffix(".so"))
    text = """
        import sys
        sys.modules["torch"] = None
        import tvm_ffi
        print(tvm_ffi.load_module(sys.argv[1] + ".so")["get"](17))
        load = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")
        print(load(sys.argv[1] + ".bwx", "so")["version"]())
        assert "blockwright" not in sys.modules"""
    command = [sys.executable, "-c", textwrap.dedent(text), str(saved.with_suffix(""))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    value, version = done.stdout.split()
    assert (np.float32(value), version) == (WEIGHTS[17], "1")


def test_loading_imports_no_compiler_and_copies_no_weights(tmp_path: Path) -> None:
    size = 64 << 20
    path = save(tmp_path / "large.bwx", weights=np.zeros(size, np.uint8))
    text = """
        import resource, sys
        sys.modules["torch"] = None
        import numpy, tvm_ffi
        from blockwright.runtime.artefact import load_artefact
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = peak()
        assert load_artefact(sys.argv[1]).library.function("get")(1 << 20) == 0
        print(peak() - before)
        rooms = {name.split(".")[1] for name in sys.modules if name.startswith("blockwright.")}
        assert rooms == {"support", "runtime"}, rooms
        assert "llvmlite" not in sys.modules"""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(reader.__file__).parents[2])},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 << 10  # KiB: far from the 64 MiB of weights


def test_processes_share_the_weights_that_they_map(tmp_path: Path) -> None:
    """This process has the pages of the file too, and counts them by `mmap`."""
    size = 16 << 20
    path = save(tmp_path / "large.bwx", weights=np.ones(size, np.uint8))
    text = """
        import sys
        from blockwright.runtime.artefact import load_artefact
        get = load_artefact(sys.argv[1], verify="head").library.function("get")
        assert sum(get(k) for k in range(0, 4 << 20, 1 << 10)) > 0  # of each page
        counted, mine = dict.fromkeys(("Rss", "Shared_Clean", "Shared_Dirty"), 0), False
        for line in open("/proc/self/smaps"):
            name = line.split()[0].rstrip(":")
            if name in counted:
                counted[name] += mine * int(line.split()[1])
            elif "-" in name and " r--p " in line:
                mine = line.rstrip().endswith(".bwx")
            elif "-" in name:
                mine = False
        print(*counted.values())"""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        assert sum(pages[:: mmap.PAGESIZE]) > 0
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(text), str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(reader.__file__).parents[2])},
        )
    assert done.returncode == 0, done.stderr
    resident, clean, dirty = map(int, done.stdout.split())  # in KiB; dirty until the disk has them
    assert resident >= size >> 10
    assert clean + dirty >= size >> 10
    assert resident - clean - dirty <= 64  # relocated addresses


class TestDamage:
    def test_truncated_at_any_length(self, saved: Path) -> None:
        data = saved.read_bytes()
        for length in (0, 1, 63, 64, 500, 4095, 4096, 8192, len(data) // 2, len(data) - 1):
            saved.write_bytes(data[:length])
            expected = {"BW801"} if length == 0 or length >= 4096 else {"BW800", "BW801"}
            assert code_of(saved) in expected
        saved.write_bytes(data + b"x")
        assert code_of(saved) == "BW804"

    def test_one_flipped_bit_anywhere(self, saved: Path) -> None:
        data = bytearray(saved.read_bytes())
        places = np.random.default_rng(5).integers(64, len(data), 150)
        for place in [16, 17, 40, 70, len(data) - 1, len(data) - 72, *map(int, places)]:
            data[place] ^= 4
            saved.write_bytes(data)
            assert code_of(saved) in ("BW800", "BW801", "BW802", "BW803", "BW804")
            data[place] ^= 4
        saved.write_bytes(data)
        read_metadata(saved, verify="full")

    def test_quick_check_covers_everything_but_weights(self, saved: Path) -> None:
        data = bytearray(saved.read_bytes())
        weights = data.index(WEIGHTS.tobytes())
        data[weights + 100] ^= 1
        saved.write_bytes(data)
        assert code_of(saved) == "BW804"
        read_metadata(saved, verify="head")
        data[data.index(b'"triple"')] ^= 1
        saved.write_bytes(data)
        assert code_of(saved, "head") == "BW804"

    @pytest.mark.parametrize("data", [b"PK\x03\x04 zip", b"\x7fELF\x02\x01" + bytes(100)])
    def test_other_files(self, tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "other"
        path.write_bytes(data)
        assert code_of(path) == "BW800"

    def test_ordinary_library(self) -> None:
        import tvm_ffi.libinfo

        assert code_of(Path(tvm_ffi.libinfo.find_libtvm_ffi())) == "BW800"

    def test_missing_file_and_folder(self, tmp_path: Path) -> None:
        assert code_of(tmp_path / "none.bwx") == "BW805"
        assert code_of(tmp_path) == "BW805"


def test_newer_format_says_so_whatever_else_it_holds(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    place = data.index(b"Blockwright\0") + 12
    struct.pack_into("<I", data, place, reader.FORMAT_VERSION + 1)
    saved.write_bytes(data)
    assert code_of(saved) == "BW802"


def test_other_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = msgspec.structs.replace(METADATA, features=("sse4.2", "from-the-future"), cpu="x99")
    path = save(tmp_path / "model.bwx", metadata=changed)
    with pytest.raises(ArtefactError, match=r"lacks: from-the-future\n.*'x99'") as caught:
        load_artefact(path)
    assert caught.value.code == "BW803"
    monkeypatch.setattr(reader, "machine", lambda: "aarch64")
    assert code_of(path) == "BW803"


def test_nothing_is_loaded_before_the_checks_pass(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(saved.read_bytes())
    data[-1] ^= 1
    saved.write_bytes(data)
    monkeypatch.setattr(reader, "load_library", lambda path: pytest.fail("loaded"))
    with pytest.raises(ArtefactError):
        load_artefact(saved)


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A device or a pipe of the name stays; a link stays, and leads to the artefact."""
    pipe, link = tmp_path / "pipe", tmp_path / "link.bwx"
    os.mkfifo(pipe)
    with pytest.raises(ArtefactError, match="not a regular file") as caught:
        save(pipe)
    assert caught.value.code == "BW805"
    assert pipe.is_fifo()
    link.symlink_to(tmp_path / "model.bwx")
    save(link)
    assert link.is_symlink()
    assert read_metadata(tmp_path / "model.bwx") == METADATA
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.bwx", "model.bwx", "pipe"]
