"""Shared fixtures: golden texts, and how hard property tests try."""

from __future__ import annotations

import difflib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from blockwright.passes.check_passes import CheckPasses
from blockwright.passes.context import PassContext

FUZZ = os.environ.get("BLOCKWRIGHT_FUZZ") == "1"
FUZZ_FACTOR = 50
USUAL_COLLECTIONS = gc.get_threshold()

# A normal run tries the same few examples every time; `make properties` tries many new ones.
_SLOW_IS_FINE = (HealthCheck.too_slow,)
settings.register_profile(
    "default", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile(
    "fuzz",
    max_examples=40 * FUZZ_FACTOR,
    deadline=None,
    print_blob=True,
    suppress_health_check=_SLOW_IS_FINE,
)
settings.load_profile("fuzz" if FUZZ else "default")


# A shell starts background jobs with Ctrl-C ignored, and so are their children. What tests of it
# say must not depend on how the run was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite tests/**/golden/<name>.txt with what the tests produce",
    )


def pytest_configure() -> None:
    """Collect garbage rarely: programs, memo tables and tests are many objects that stay.

    By default Python goes through all of them after every few thousand new ones, which took about
    a seventh of the run. A test that needs a collection asks for it.
    """
    gc.set_threshold(100_000, 10, 10)


def pytest_collection_finish() -> None:
    """Set aside what stays until the end: PyTorch, the sources, and all collected tests."""
    gc.freeze()


@pytest.fixture
def usual_collections() -> Iterator[None]:
    """Garbage is collected as often as Python does by default, for tests that measure memory."""
    before = gc.get_threshold()
    gc.set_threshold(*USUAL_COLLECTIONS)
    yield
    gc.set_threshold(*before)


@pytest.fixture(scope="module")
def objects_set_aside() -> None:
    """A collection, or a list of all objects, goes through those of the module's tests alone."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def modules_stay_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every pass of every compilation, the graph functions that it changed are valid."""
    check_after_every_pass(monkeypatch, CheckPasses(programs=False))


def check_after_every_pass(monkeypatch: pytest.MonkeyPatch, check: CheckPasses) -> None:
    """Give every compilation an instrument."""
    init = PassContext.__init__

    def checked(self: PassContext, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.instruments.insert(0, check)

    monkeypatch.setattr(PassContext, "__init__", checked)


@pytest.fixture
def fuzz_factor() -> int:
    """How many times more random cases to try than usual, for tests with loops of their own."""
    return FUZZ_FACTOR if FUZZ else 1


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: ``text`` equals ``golden/<name>.txt`` beside the test file.

    With ``--update-golden`` the file is written instead; read the change before committing it.
    """
    folder = request.path.parent / "golden"
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = folder / f"{name}.txt"
        text = text.rstrip("\n") + "\n"
        if update:
            _write_if_changed(path, text)
            return
        if not path.is_file():
            pytest.fail(f"{path} does not exist; make it with --update-golden", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if text != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), "golden", "now", lineterm=""
            )
            shown = "\n".join(diff)
            pytest.fail(f"{path} differs (--update-golden accepts):\n{shown}", pytrace=False)

    return check


def _write_if_changed(path: Path, text: str) -> None:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
