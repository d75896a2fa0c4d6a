"""Passes that select among implementations of an operator."""
