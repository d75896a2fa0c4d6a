"""Compile random graph functions and compare them with NumPy.

    python -m fuzzing.graphs --graphs 1000

A function has about a dozen bindings of the `R` dialect: operators, tuples, calls of tensor
programs, checked casts. Its values are integers, also in float types, so that all results are
exact. Wrong results and internal errors are reduced and printed as scripts (see `docs/fuzzing.md`).
"""
