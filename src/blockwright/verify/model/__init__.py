"""The model of a program that is compared: statements, instance sets, values."""
