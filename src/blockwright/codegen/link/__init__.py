"""Object files linked into shared libraries (ELF)."""
