"""Data flow among the blocks of a scope."""
