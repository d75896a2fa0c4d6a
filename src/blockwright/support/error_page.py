"""The error codes on one page, generated from the table.

`python -m blockwright.support.error_page > docs/errors.md` renews the page; a test checks that the
page and the table agree.
"""

from __future__ import annotations

import sys

from blockwright.support.codes import CODES, FAMILIES

_INTRO = """# Error codes

Generated from the table of codes (`python -m blockwright.support.error_page`); do not edit.

An error prints its code, `error[BW317]`, and carries it as `error.code`. The message names what is
wrong in the program at hand, and mostly what to do instead; the code stands for the rule.
`blockwright explain BW317` prints its line of this page and, for many schedule errors, a schedule
that is refused and one that is not. `BLOCKWRIGHT_TRACEBACK=full` keeps the scheduler's own frames
in tracebacks."""


def page_text() -> str:
    """The page."""
    lines = [_INTRO]
    for digit, family in FAMILIES.items():
        title = family[0].upper() + family[1:]
        lines += ["", f"## BW{digit}xx: {title}", "", "| code | rule |", "|---|---|"]
        lines += [f"| {c} | {rule} |" for c, rule in CODES.items() if c[2] == digit]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page_text())
