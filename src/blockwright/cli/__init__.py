"""Command-line interface: `blockwright compile | run | show | doctor | explain`.

Importing this package loads typer but no part of the compiler, so that `--help` responds at once.
Each command imports what it needs when it runs.
"""

from blockwright.cli.app import main

__all__ = ["main"]
