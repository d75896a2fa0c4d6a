"""Normalization: rewrites that bring two programs into a common form before comparison."""
