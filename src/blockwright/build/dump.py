"""Dump the program after every pass to files, for inspection and diffs.

`BLOCKWRIGHT_DUMP_DIR=dumps` writes `dumps/NN-pass.py` for the graph passes of a model, and
`dumps/<function>/NN-pass.py` for the lowering of each function; `--dump-dir` of the command line
writes the former. `00-import.py` is the program before the first pass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from blockwright.ir.printer import script
from blockwright.support import OptionError

OnAnyPass = Callable[[str, Any, Any], None]
VARIABLE = "BLOCKWRIGHT_DUMP_DIR"


def dump_directory() -> Path | None:
    """The dump directory from the environment; None when it is not set."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else None


class PassDump:
    """A pass observer that writes the program before the first pass and after every one.

    Files of an earlier run are removed.

    Arguments:
        then: is called after each file is written.
        setting: what named the folder, for messages.

    Raises: OptionError BW915, also when called, where files cannot be written.
    """

    def __init__(
        self, folder: Path, then: OnAnyPass | None = None, setting: str = VARIABLE
    ) -> None:
        self.folder, self._then, self._setting, self._count = folder, then, setting, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("[0-9][0-9]-*.py"):
                old.unlink()
        except OSError as error:
            raise self._unwritable(folder, error) from None

    def __call__(self, name: str, before: Any, after: Any) -> None:
        if self._count == 0:
            self._write("import", before)
        self._write(name, after)
        if self._then is not None:
            self._then(name, before, after)

    def _write(self, name: str, program: Any) -> None:
        path = self.folder / f"{self._count:02d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}.py"
        self._count += 1
        try:
            path.write_text(script(program) + "\n", encoding="utf-8")
        except OSError as error:
            raise self._unwritable(path, error) from None

    def _unwritable(self, path: Path, error: OSError) -> OptionError:
        return OptionError(
            f"{self._setting}: cannot write {path}: {error.strerror or error}",
            code="BW915",
            help="name a folder in which files can be written",
        )
