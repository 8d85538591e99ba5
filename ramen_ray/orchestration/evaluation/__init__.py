"""Evaluation of checkpoints and retrievers."""
