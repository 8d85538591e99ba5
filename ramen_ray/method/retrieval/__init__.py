"""Find ads by their vectors: search, indexes, shortlists, and the retriever that is deployed."""
