"""The program as a shell sees it: start-up, exit status, streams, interrupts, closed pipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from blockwright import __version__
from blockwright.cli import session
from blockwright.support import OptionError

START = [sys.executable, "-c", "from blockwright.cli import main; main()"]


def shell(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*START, *args], capture_output=True, text=True, check=False)


def test_help_lists_the_commands() -> None:
    done = shell("--help")
    assert done.returncode == 0
    for command in ("compile", "run", "show", "doctor"):
        assert f"  {command} " in done.stdout


def test_help_loads_no_compiler() -> None:
    code = (
        "import sys, json, contextlib, io\n"
        "from blockwright.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    assert modules.isdisjoint({"numpy", "torch", "tvm_ffi", "llvmlite"})
    assert modules.isdisjoint({"blockwright.ir", "blockwright.build", "blockwright.api.compile"})


def test_version() -> None:
    assert shell("--version").stdout == f"blockwright {__version__}\n"


def test_wrong_use_is_status_2() -> None:
    done = shell("compile", "x.pt2")
    assert done.returncode == 2
    assert "--output" in done.stderr
    assert shell("frobnicate").returncode == 2


def test_errors_have_code_and_remedy_but_no_traceback() -> None:
    done = shell("show", "model.h5")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error[BW902]: 'model.h5' is not a model" in done.stderr
    assert "help: give an .onnx or .pt2 file" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback() -> None:
    done = shell("show", "model.h5", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "error[BW902]" in done.stderr


def test_interrupt_ends_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from blockwright.cli import doctor, main

    def interrupted() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "examine", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    # More text than a pipe holds.
    names = [f"a_value_with_a_name_long_enough_to_fill_a_line_{i}" for i in range(1000)]
    body = "\n".join(f"            {result} = R.relu({given})" for given, result in pairwise(names))
    script.write_text(
        "from blockwright.script import ir as I, relax as R\n\n"
        "@I.ir_module\nclass Model:\n"
        "    @R.function\n"
        f'    def main({names[0]}: R.Tensor((4,), "float32")):\n'
        f"        with R.dataflow():\n{body}\n            R.output({names[-1]})\n"
        f"        return {names[-1]}\n"
    )
    # Unbuffered, Python itself takes a partial write for a whole one and reports no closed pipe.
    buffered = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*START, "show", str(script), "--stage", "graph"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=buffered,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() == session.PIPE_CLOSED


def test_defects_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError), session.command_session(debug=False):
        _ = 1 / 0


def test_messages_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    session.print_error(OptionError("shape [bold](n, 8)[/bold] is wrong", code="BW999"))
    assert "[bold](n, 8)[/bold]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (5 << 20, "5.0 MiB"),
        (3 << 40, "3072.0 GiB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert session.size(count) == text
