"""Program model for the proofs: statements, instance sets, symbolic values."""
