"""Command line of `fuzzing.products`: see the package."""

from __future__ import annotations

import sys

from fuzzing.products.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.products", 300))
