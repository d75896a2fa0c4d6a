"""The package imports fast and alone, and the pinned environments are what it asks for."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"

PROBE = """
import json, sys, time
start = time.perf_counter()
import blockwright
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "modules": sorted({m.split(".")[0] for m in sys.modules})}))
"""


def probe_import() -> tuple[float, set[str]]:
    """Import the package in a fresh process: seconds it took, top-level modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report["seconds"], set(report["modules"])


def pins(*names: str) -> dict[str, Requirement]:
    """The pinned packages of some requirement files by canonical name."""
    found: dict[str, Requirement] = {}
    for name in names:
        for line in (REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                requirement = Requirement(line)
                found[canonicalize_name(requirement.name)] = requirement
    return found


def pinned_version(requirement: Requirement) -> str:
    (specifier,) = requirement.specifier
    assert specifier.operator == "==", f"{requirement} is not a pin"
    return specifier.version


def test_import_loads_no_heavy_library() -> None:
    _, modules = probe_import()
    assert "blockwright" in modules
    assert modules.isdisjoint({"torch", "tvm_ffi", "llvmlite", "onnx", "transformers", "z3"})


def test_import_is_fast() -> None:
    # The best of three: the limit is about the package, not about a busy machine.
    assert min(probe_import()[0] for _ in range(3)) <= 0.5


@pytest.mark.parametrize(
    ("group", "files"),
    [
        (None, ("base",)),
        ("torch", ("torch",)),
        ("examples", ("torch", "base", "demo")),
        ("dev", ("dev",)),
    ],
)
def test_pins_satisfy_the_declared_dependencies(group: str | None, files: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"][group] if group else project["dependencies"]
    pinned = pins(*files)
    for text in declared:
        requirement = Requirement(text)
        pin = pinned.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no pin in {files}"
        assert requirement.specifier.contains(pinned_version(pin), prereleases=True), str(pin)


def test_one_version_of_each_package_in_all_pinned_files() -> None:
    seen: dict[str, str] = {}
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        for name, requirement in pins(path.stem).items():
            version = pinned_version(requirement)
            assert seen.setdefault(name, version) == version, f"{name} differs in {path.name}"


def test_base_install_has_no_framework() -> None:
    assert pins("base").keys().isdisjoint({"torch", "transformers", "tokenizers", "safetensors"})


def test_golden_files_compare_and_update(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text(encoding="utf-8"))
    pytester.makepyfile("def test_text(golden):\n    golden('greeting', 'hello')\n")

    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(failed=1)
    pytester.runpytest_inprocess("--update-golden").assert_outcomes(passed=1)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)

    (pytester.path / "golden" / "greeting.txt").write_text("goodbye\n", encoding="utf-8")
    failed = pytester.runpytest_inprocess()
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["*-goodbye*", "*+hello*"])
