"""Encoders, losses, sampling, training step, search and metrics, without Ray and MLflow."""
