"""Link object files into shared libraries (ELF)."""
