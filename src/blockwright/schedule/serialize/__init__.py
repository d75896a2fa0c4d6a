"""Traces as JSON and as Python text."""
