"""Anchor sets of a user's edges, of sessions and of texts, for a dataset directory."""
