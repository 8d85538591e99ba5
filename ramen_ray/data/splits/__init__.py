"""Datasets made from others: splits with novel ads, and clicks propagated over the graph."""
