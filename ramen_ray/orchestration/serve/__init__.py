"""Deploy a finished run: promotion, compilation, new ads, batch prediction."""
