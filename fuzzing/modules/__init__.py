"""Compile random torch modules and compare them with PyTorch.

    python -m fuzzing.modules --modules 3000

A module has two to ten operator calls on one to three inputs of eight types, with special values
among the elements; its sizes are fixed or symbolic, and may be 0 or 1. Wrong results and internal
errors are reduced and printed as scripts (see `docs/fuzzing.md`).
"""
