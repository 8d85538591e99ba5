"""Judging answers: what is drawn and said, and the page that asks."""
