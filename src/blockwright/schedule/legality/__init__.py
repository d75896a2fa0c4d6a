"""Legality checks shared by schedule primitives, and remedies for rejected steps."""
