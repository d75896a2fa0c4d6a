"""Checks of tensor programs: well-formedness, bindings, races, reads before writes."""
