"""Choice among implementations of an operator."""
