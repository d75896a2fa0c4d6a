"""Serialization of traces: JSON and Python text."""
