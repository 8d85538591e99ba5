"""Anchor sets: edges from a user's lists or from search sessions, added to a dataset directory."""
