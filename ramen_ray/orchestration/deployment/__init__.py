"""From a finished run to answers: retrievers, promotion, compilation, batch prediction."""
