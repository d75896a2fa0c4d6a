"""Mutate annotations of valid modules: `python -m fuzzing.schedules --annotations`.

One or two places of each module of a bank (`bank`) are changed (`mutate`): annotations, result
types stated by calls, signatures of callees, arguments, casts, sizes. A mutant must either be
rejected with a code, or compile and compute the results of an evaluation in NumPy that ignores
annotations (`oracle`), in the shapes and types that its results declare (`trial`). Accepted mutants
run in separate processes: a crash is a finding like any other.
"""

from __future__ import annotations
