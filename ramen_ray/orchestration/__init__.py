"""The only part that imports Ray."""
