"""Mutation test of the safety net: faults put into the scheduler, and which net catches each.

The faults (`sites`) are made from the sources of the schedule room by rewriting their syntax trees
in memory: each precondition left out, each range one off, each pair of bindings swapped, each
initial value and predicate dropped, each inverse one off. `switch` gives a function the faulty code
and takes it back. `bank` gathers uses of the primitives, accepted and refused, from random players
and from the tests of the schedule room; a precondition is tried on the uses that it refused, every
other fault on uses that run through its function. `nets` runs one fault on its uses: what the step
makes goes through the legality checks, the interpreter and the prover.

`python -m fuzzing.mutation --page docs/safety-net.md` makes the page of the results;
the survivors must be those of `argued.json`, each with the reason why it does no harm.
"""
