"""What strategies match: block structure, sliding windows, vector axes."""
