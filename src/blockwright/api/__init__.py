"""What users import; `blockwright/__init__` loads these names at first use."""
