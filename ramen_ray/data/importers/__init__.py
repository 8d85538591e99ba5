"""Importers that turn published data and users' tables into the dataset directory."""
