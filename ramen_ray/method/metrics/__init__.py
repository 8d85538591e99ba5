"""Ranking metrics, and what is measured with them: splits, retrievers, differences, bad matches."""
