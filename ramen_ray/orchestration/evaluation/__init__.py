"""Measuring checkpoints and retrievers."""
