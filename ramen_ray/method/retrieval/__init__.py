"""From vectors to ads: search, indexes, shortlists, and the retriever that is deployed."""
