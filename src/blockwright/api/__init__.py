"""Public API: compile, validate, verify. `blockwright` imports these names on first use."""
