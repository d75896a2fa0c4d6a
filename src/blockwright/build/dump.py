"""Programs after every pass as files, for reading and comparing.

`BLOCKWRIGHT_DUMP_DIR=dumps` gives `dumps/NN-pass.py` for the passes over a model, and
`dumps/<function>/NN-pass.py` for the lowering of each function; NN counts the passes from 00 on.
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
    """Where the environment asks for programs to be written; None when it does not."""
    chosen = os.environ.get(VARIABLE)
    return Path(chosen) if chosen else None


def dump_passes(directory: Path, then: OnAnyPass | None = None) -> OnAnyPass:
    """An observer of passes that writes what each one makes, and then calls another observer.

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
                help="name a directory that can be written",
            ) from None
        count += 1
        if then is not None:
            then(name, before, after)

    return observe
