"""Canonical forms of programs that analyses and schedules work on."""
