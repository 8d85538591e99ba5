"""Vectors for new ads, from their texts and the classifiers of similar ads (IRENE)."""
