"""Encoders: what turns texts into vectors, and how they are loaded, saved and compiled."""
