"""Command line of `fuzzing.modules`: see the package."""

from __future__ import annotations

import sys

from fuzzing.modules.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.modules", 3000))
