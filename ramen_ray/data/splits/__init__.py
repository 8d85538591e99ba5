"""Datasets made from other datasets: novel ads, and clicks propagated over the graph."""
