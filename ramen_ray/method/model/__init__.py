"""Encoders, which turn texts into vectors: loaded, saved and compiled."""
