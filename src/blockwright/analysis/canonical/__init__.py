"""Canonical program forms used by analyses and schedules."""
