"""Verify random schedule steps, each against the program before it.

`python -m fuzzing.proofs --steps 2000 --seed 0` prints per primitive how many steps were proved,
unknown and refuted, the reasons, and the time that verdicts took. With `--mutants`, an error is
injected into every result first; then none may be proved. With `--features`, errors are put into
small programs with bound values, atomic updates, views, assertions and so on (`features`, `wrong`).
"""
