"""Rewrites that bring two programs into a common form before they are compared."""
