"""Command line of `fuzzing.onnx_graphs`: see the package."""

from __future__ import annotations

import sys

from fuzzing.onnx_graphs.campaign import CAMPAIGN

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main("fuzzing.onnx_graphs", 1000))
