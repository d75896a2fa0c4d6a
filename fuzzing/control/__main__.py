"""Command line of `fuzzing.control`: see the package."""

from __future__ import annotations

import sys

from fuzzing.control.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.control", 1000))
