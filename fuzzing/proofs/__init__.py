"""Random schedule steps, each proved against the program before it.

`python -m fuzzing.proofs --steps 2000 --seed 0` prints per primitive how many steps
were proved, unknown and refuted, why, and how long verdicts took; `--mutants` puts an error into
every result first, and then none may be proved.
"""
