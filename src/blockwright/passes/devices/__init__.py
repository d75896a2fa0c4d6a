"""Passes that place values on devices, and programs on the targets of the devices."""
