"""Passes over calls between graph functions, local functions and branches."""
