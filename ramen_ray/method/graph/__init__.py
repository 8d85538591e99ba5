"""Graphs for training: walked, pruned, or made from similar texts."""
