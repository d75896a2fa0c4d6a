"""Operators of the graph level, one row each: `blockwright.ops.table.OPERATORS`."""
