"""Scheduling strategies for CPUs."""
