"""Packages that answer the same question, beside ours: ``python -m benchmarks.peers``."""
