"""`python -m blockwright`: the command line without its script."""

from __future__ import annotations

from blockwright.cli import main

main()
