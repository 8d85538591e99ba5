"""Ranking metrics, differences between models, and bad match rates."""
