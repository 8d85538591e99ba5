"""Combiners for new ads, trained on finished runs."""
