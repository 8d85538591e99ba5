"""What is done with a trained retriever: promotion, new ads, compilation, batch prediction."""
