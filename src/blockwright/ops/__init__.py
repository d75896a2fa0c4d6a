"""Graph-level operators, one row each; the table is `blockwright.ops.table.OPERATORS`."""
