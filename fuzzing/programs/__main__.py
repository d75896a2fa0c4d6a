"""Command line of `fuzzing.programs`: see the package."""

from __future__ import annotations

import sys

from fuzzing.programs.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.programs", 1000))
