"""Random schedules at length, with every failure reduced to a script: `make fuzz`.

`python -m fuzzing.schedules --steps 100000` draws programs (`testing/generators`) and steps
(`testing/moves`). After every step the program runs on the interpreter and must compute what the
first one did; a share of the programs is compiled too (`--native`) and must agree as well. A share
of the programs (`--lowered`) gets tiles and annotations that give lowering much to do, and is
lowered pass by pass (`lowering`). After the last step handles, trace and text are checked. Work
happens in processes of its own (`isolate`), so a crash is a failure like any other.

The failure is reduced (`reduce`): steps are left out, then stages, sizes, symbols and operators of
the program, as long as it fails in the same way. What is left is written into the corpus
(`corpus`), a folder of scripts that raise, or crash, until the fault is mended, and a file that
says how far the run has come. The next run goes on from there, after it has tried the scripts.
"""
