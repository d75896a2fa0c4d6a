"""Compile random tensor programs whose control flow reads what they write.

    python -m fuzzing.control --programs 3000

Conditions, loop bounds, iterators, predicates, sizes and regions of views are loaded from buffers
that the program changes meanwhile, also through views, by atomic updates and in vectorized loops.
Compiled code is compared with the interpreter (see `docs/fuzzing.md`).
"""
