"""Random torch modules, compiled and compared with PyTorch.

    python -m fuzzing.modules --modules 3000

A module has two to ten calls of operators on one to three inputs, of eight types, with special
values among the elements; its sizes are fixed or symbols, and may be 0 or 1. What is wrong, or ends
in an internal error, is made smaller and printed as a script (see `docs/fuzzing.md`).
"""
