"""Compare compiled torch modules with PyTorch: results, other sizes, isolated outcomes."""
