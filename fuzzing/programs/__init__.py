"""Run random low-level tensor programs, and compare every stage of their compilation.

    python -m fuzzing.programs --programs 1000

A program has what passes may get wrong: checked indices that are loaded, under conditions and in
loops; effects inside of expressions; several names of one memory, with offsets, strides and other
element types; calls of other programs, also with one memory as two buffers; buffers whose values
pass from iteration to iteration; early exits; assertions; named values of memory that changes;
numbers at both ends of the ranges that they may have. The interpreter runs the program, and what
every lowering pass makes of it; compiled code is called (see `docs/fuzzing.md`).
"""
