"""Proofs of equivalence and memory safety, and replay of counterexamples."""
