"""Reductions: recognized in loop form, declared, combined across threads."""
