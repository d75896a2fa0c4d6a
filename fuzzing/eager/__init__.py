"""Compiled torch modules against PyTorch itself: comparison, other sizes, isolated outcomes."""
