"""LLVM code generation for expressions, statements and calls."""
