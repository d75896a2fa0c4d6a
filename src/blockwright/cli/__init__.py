"""What users type: `blockwright compile | run | show | doctor`.

Importing this room loads typer and nothing of the compiler, so that `--help` answers at once; every
command loads what it needs when it runs.
"""

from blockwright.cli.app import main

__all__ = ["main"]
