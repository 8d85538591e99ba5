"""The only part that imports MLflow."""
