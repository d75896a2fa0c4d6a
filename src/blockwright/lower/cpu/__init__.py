"""Lowering passes for CPUs: masks, tails, register-sized vectors."""
