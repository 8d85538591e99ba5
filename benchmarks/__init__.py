"""Benchmarks: each measures both sides of a comparison in one run; its last line is JSON."""
