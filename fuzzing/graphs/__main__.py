"""Command line of `fuzzing.graphs`: see the package."""

from __future__ import annotations

import sys

from fuzzing.graphs.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.graphs", 1000))
