"""Long runs of random schedules that reduce every failure to a script: `make fuzz`.

`python -m fuzzing.schedules --steps 100000` draws programs (`testing/generators`) and steps
(`testing/moves`). After every step the program runs on the interpreter and must compute the same as
the original; a fraction of the steps (`--native`) is compiled and compared too. A fraction of
the programs (`--lowered`) gets tiles and annotations that give lowering much to do, and is lowered
pass by pass (`lowering`). After the last step, handles, trace and text are checked. Work runs in
separate processes (`isolate`), so a crash is a failure like any other.

A failure is reduced (`reduce`): steps are removed, then stages, sizes, symbols and operators of the
program, as long as it fails in the same way. The result is written to the corpus (`corpus`), a
folder of scripts that raise or crash until the fault is fixed, and a file with the progress. The
next run first repeats the scripts and then continues from there.
"""
