"""Mutation test of the schedule primitives: inject faults and record which checks catch each.

The faults (`sites`) are made from the sources of the `schedule` package by rewriting their syntax
trees in memory: each precondition removed, each range off by one, each pair of bindings swapped,
each initial value and predicate dropped, each inverse off by one. `switch` gives a function the
faulty code and restores it. `bank` collects uses of the primitives, accepted and refused, from
random players and from the tests of the package. A removed precondition is tried on the uses that
it refused, every other fault on uses that execute its function. `nets` runs one fault on its uses:
the resulting program goes through the legality checks, the interpreter and the prover.

`python -m fuzzing.mutation --page docs/safety-net.md` writes the page of results. The survivors
must be those of `argued.json`, each with the reason why it is harmless.
"""
