"""Comparisons with other engines, timed side by side on one machine and reported as ratios."""
