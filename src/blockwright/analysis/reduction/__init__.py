"""Reductions: recognition in loop form, declared reducers, cross-thread reductions."""
