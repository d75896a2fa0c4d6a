"""Accesses of statements, access regions, and the contexts in which blocks run."""
