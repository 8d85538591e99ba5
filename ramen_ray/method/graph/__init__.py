"""Graphs as training sees them: walked, pruned, or made from similar texts."""
