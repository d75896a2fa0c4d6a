"""Dataflow between the blocks of a scope."""
