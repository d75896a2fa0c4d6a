"""Lowering of graph functions to host programs."""
