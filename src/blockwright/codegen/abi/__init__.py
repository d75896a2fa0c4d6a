"""Entries of compiled functions: argument checks, symbolic sizes, results."""
