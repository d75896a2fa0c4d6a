"""Run random modules of graph functions, and compare every stage of their compilation.

    python -m fuzzing.functions --programs 1000

Around the bindings of `fuzzing.graphs` there are calls of other functions (with tuples, shapes and
functions as arguments and results), nested functions that capture values and symbols, branches,
recursion bounded by a size, and checked casts. The interpreter runs the module, and what every pass
makes of it; compiled code is called. All results must be those of NumPy (see `docs/fuzzing.md`).
"""
