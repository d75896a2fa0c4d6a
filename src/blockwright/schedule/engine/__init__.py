"""State and edits of a schedule, its records and handles."""
