"""Sentence embeddings with all-MiniLM-L6-v2: from PyTorch to native code and query results."""
