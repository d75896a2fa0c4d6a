"""Entries of compiled functions: argument checks, symbols, results."""
