"""Measurements of both sides of a comparison in one run; the last line of each is JSON."""
