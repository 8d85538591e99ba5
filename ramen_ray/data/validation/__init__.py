"""Leaks as hashes of texts, for graphs that are not built by the engine yet."""
