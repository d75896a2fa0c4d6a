"""Compile random matrix products of narrow types for several targets of this machine.

    python -m fuzzing.products --products 500

Products, batches of products, `einsum` and convolutions of bfloat16, float16, float32 and 8-bit
integers, with constant or variable weights, fixed or symbolic sizes, and elementwise operators
behind them, run on targets with and without the units for such products (see `docs/fuzzing.md`).
"""
