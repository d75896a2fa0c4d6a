"""Runnable examples; each folder is one program that works on real data."""
