"""Importers that bring published sources into the dataset directory."""
