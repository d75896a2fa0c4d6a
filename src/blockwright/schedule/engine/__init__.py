"""Core of the scheduler: step state, program edits, primitive records and handles."""
