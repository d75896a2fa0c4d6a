"""Generate the page of error codes, `docs/errors.md`, from the table in `codes`.

Run `python -m blockwright.support.error_page > docs/errors.md` to update the page; a test checks
that it agrees with the table.
"""

from __future__ import annotations

import sys

from blockwright.support.codes import CODES, FAMILIES

_INTRO = """# Error codes

Generated from the table of codes (`python -m blockwright.support.error_page`); do not edit.

An error prints its code as `error[BW317]` and stores it in `error.code`. The code identifies the
kind of error; the message describes the error in the program at hand and usually suggests a fix.
`blockwright explain BW317` prints the entry of this page and, for many schedule errors, an example
of a rejected schedule and a corrected one. Set `BLOCKWRIGHT_TRACEBACK=full` to keep the scheduler's
internal frames in tracebacks."""


def page_text() -> str:
    """Return the text of the page."""
    lines = [_INTRO]
    for digit, family in FAMILIES.items():
        title = family[0].upper() + family[1:]
        lines += ["", f"## BW{digit}xx: {title}", "", "| code | meaning |", "|---|---|"]
        lines += [f"| {c} | {rule} |" for c, rule in CODES.items() if c[2] == digit]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page_text())
