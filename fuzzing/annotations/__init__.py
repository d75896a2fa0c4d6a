"""Mutated annotations of valid modules: `python -m fuzzing.schedules --annotations`.

Of each module of a bank (`bank`), one or two places are changed (`mutate`): annotations, results
that calls state, signatures of callees, arguments, casts, sizes. A mutant is either refused with a
code, or it compiles and computes what an evaluation in NumPy gives that looks at no annotation
(`oracle`), in the shapes and types that its results declare (`trial`). Accepted mutants run in
processes of their own: a crash is a finding like any other.
"""

from __future__ import annotations
