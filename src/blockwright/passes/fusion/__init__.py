"""Fusion of operators into kernels."""
