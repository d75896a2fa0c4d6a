"""Dump the program after every pass to files, for inspection and diffs.

`BLOCKWRIGHT_DUMP_DIR=dumps` writes `dumps/NN-pass.py` for the graph passes of a model, and
`dumps/<function>/NN-pass.py` for the lowering of each function; NN counts passes from 00.
"""

from __future__ import annotations

import os
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


def dump_passes(directory: Path, then: OnAnyPass | None = None) -> OnAnyPass:
    """A pass observer that writes the result of each pass and then calls `then`.

    Raises, when called: OptionError BW915 where files cannot be written.
    """
    count = 0

    def observe(name: str, before: Any, after: Any) -> None:
        nonlocal count
        path = directory / f"{count:02d}-{name}.py"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path.write_text(script(after) + "\n")
        except OSError as error:
            raise OptionError(
                f"{VARIABLE}: cannot write {path.name}: {error.strerror}",
                code="BW915",
                help="set it to a writable directory",
            ) from None
        count += 1
        if then is not None:
            then(name, before, after)

    return observe
