"""Train retrieval encoders regularised by side graphs (RAMEN)."""
