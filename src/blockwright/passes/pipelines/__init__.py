"""Pipelines by kind of target: `PIPELINE` of `cpu.py` compiles for CPUs."""
