"""Encoders, losses, sampling, training step, search and metrics; knows neither Ray nor MLflow."""
