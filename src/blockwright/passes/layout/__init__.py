"""Passes that choose tensor layouts."""
