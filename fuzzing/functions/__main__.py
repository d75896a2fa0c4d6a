"""Command line of `fuzzing.functions`: see the package."""

from __future__ import annotations

import sys

from fuzzing.functions.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.functions", 1000))
