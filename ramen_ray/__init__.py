"""Train retrieval encoders regularised by side graphs (RAMEN)."""

__version__ = "0.1.0"
