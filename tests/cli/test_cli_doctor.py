"""`doctor` reports everything, and fails only for what compiling and running need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from blockwright.cli import doctor
from blockwright.cli.doctor import CheckLine
from blockwright.support import BuildError


def values(found: list[CheckLine]) -> dict[str, str]:
    return {finding.name: finding.value for finding in found}


def test_this_machine_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.examine()
    out = capsys.readouterr().out
    assert "FAIL" not in out
    for name in ("python", "llvm", "processor", "vectors", "threads", "object cache", "numpy"):
        assert f"  {name}" in out
    assert "built in" in out


def test_a_broken_part_is_named_with_its_remedy_and_hides_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def probe_first() -> list[CheckLine]:
        raise BuildError("nothing links", code="BW601", help="free some disk space")

    def probe_second_part() -> list[CheckLine]:
        raise OSError("no such device")

    def probe_third() -> list[CheckLine]:
        return [CheckLine("third", "fine")]

    monkeypatch.setattr(doctor, "PROBES", (probe_first, probe_second_part, probe_third))
    assert not doctor.examine()
    out = capsys.readouterr().out
    assert "FAIL  first" in out
    assert "[BW601] nothing links\n        remedy: free some disk space" in out
    assert "FAIL  second part" in out
    assert "OSError: no such device" in out
    assert "ok    third" in out


def test_the_exit_status_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    from blockwright.cli import main

    for healthy, status in ((True, 0), (False, 1)):
        monkeypatch.setattr(doctor, "examine", lambda answer=healthy: answer)
        with pytest.raises(SystemExit) as end:
            main(["doctor"])
        assert (end.value.code or 0) == status


def test_a_required_package_that_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    broken = [f for f in doctor.probe_packages() if f.state == "broken"]
    assert [f.name for f in broken] == ["llvmlite"]
    assert broken[0].remedy == "pip install --force-reinstall llvmlite"


def test_optional_packages_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-package-of-ours": "torch"})
    (last,) = doctor.probe_packages()[-1:]
    assert last.state == "ok"
    assert "optional" in last.value


def test_thread_counts_say_what_limits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("BLOCKWRIGHT_NUM_THREADS", raising=False)
    monkeypatch.setattr("blockwright.runtime.threads.num_threads", lambda: 2)
    text = values(doctor.probe_threads())["threads"]
    assert text == "2 (8 processors, 3 allowed by affinity, cgroup quota 2)"


def test_more_threads_than_processors_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    monkeypatch.setenv("BLOCKWRIGHT_NUM_THREADS", "4")
    monkeypatch.setattr("blockwright.runtime.threads.num_threads", lambda: 4)
    states = [f.state for f in doctor.probe_threads()]
    assert states == ["ok", "note"]


def test_object_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", str(tmp_path / "new"))
    (found,) = doctor.probe_cache()
    assert "0 objects, 0 B of" in found.value
    assert not (tmp_path / "new").exists()  # looking changes nothing

    (tmp_path / "new" / "ab").mkdir(parents=True)
    (tmp_path / "new" / "ab" / "cd.o").write_bytes(bytes(2048))
    (found,) = doctor.probe_cache()
    assert "1 objects, 2.0 KiB of" in found.value

    monkeypatch.setattr(doctor, "_writable", lambda folder: False)
    (found,) = doctor.probe_cache()
    assert found.state == "note"
    assert "BLOCKWRIGHT_CACHE_DIR" in found.remedy

    monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", "")
    (found,) = doctor.probe_cache()
    assert found.value.startswith("off")


def test_the_trial_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for before in ("/somewhere", None):
        if before is None:
            monkeypatch.delenv("BLOCKWRIGHT_CACHE_DIR", raising=False)
        else:
            monkeypatch.setenv("BLOCKWRIGHT_CACHE_DIR", before)
        (found,) = doctor.probe_compile_and_run()
        assert found.state == "ok"
        assert os.environ.get("BLOCKWRIGHT_CACHE_DIR") == before
