"""Programs that are no einsums, written by splicing: Python functions that emit fragments."""
