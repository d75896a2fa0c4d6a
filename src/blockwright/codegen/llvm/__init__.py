"""Generate LLVM code for expressions, statements and calls."""
