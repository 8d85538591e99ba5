"""Anchor sets of a user's edges and of sessions, for a dataset directory."""
