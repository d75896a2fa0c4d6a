"""Thread settings before any library is loaded, and what the processor is known to do."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from blockwright.runtime import cpu, threads
from blockwright.runtime.cpu_features import FEATURES, from_flags, known_features
from blockwright.runtime.library import load_library
from blockwright.support import ArtefactError, OptionError

SOURCE = str(Path(threads.__file__).parents[2])


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": SOURCE, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_settings_are_remembered_and_import_nothing() -> None:
    program = """
        import sys
        from blockwright.runtime import threads
        default = threads.num_threads()
        threads.set_num_threads(7)
        print(threads.num_threads())
        threads.set_num_threads(0)
        assert threads.num_threads() == default
        assert "tvm_ffi" not in sys.modules and "numpy" not in sys.modules"""
    assert run(program) == "7"


def test_environment() -> None:
    program = "from blockwright.runtime.threads import num_threads\nprint(num_threads())"
    assert run(program, BLOCKWRIGHT_NUM_THREADS="5") == "5"


@pytest.mark.parametrize("value", ["0", "-3", "many", "1.5", "", "100000"])
def test_nonsense_in_the_environment(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_NUM_THREADS", value)
    with pytest.raises(OptionError, match="BLOCKWRIGHT_NUM_THREADS") as caught:
        threads.default_num_threads()
    assert caught.value.code == "BW903"


def test_default_is_within_the_allowed_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOCKWRIGHT_NUM_THREADS", raising=False)
    assert 1 <= threads.default_num_threads() <= len(os.sched_getaffinity(0))


def test_processor_features_have_llvm_names() -> None:
    assert cpu.missing_features(["not-a-feature"]) == ["not-a-feature"]
    if cpu.machine() == "x86-64":
        assert cpu.has_feature("sse2")
        flags = cpu.kernel_flags()
        assert cpu.has_feature("sse4.2") == ("sse4_2" in flags)
        assert cpu.has_feature("bmi") == ("bmi1" in flags)
        assert cpu.has_feature("lzcnt") == ("abm" in flags)


@pytest.mark.parametrize("arch", FEATURES)
def test_the_native_target_and_artefacts_know_the_same_features(
    arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a target of a machine contains, an artefact finds on that machine."""
    flags = frozenset(flag for feature in FEATURES[arch] for flag in feature.flags)
    monkeypatch.setattr(cpu, "kernel_flags", lambda: flags)
    monkeypatch.setattr(cpu, "machine", lambda: arch)
    assert cpu.missing_features(from_flags(arch, flags)) == []
    assert cpu.missing_features(known_features(arch)) == []


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_text("no library")
    with pytest.raises(ArtefactError, match="dynamic linker cannot load") as caught:
        load_library(path)
    assert caught.value.code == "BW806"
    with pytest.raises(ArtefactError, match="No such file"):
        load_library(tmp_path / "missing.so")
