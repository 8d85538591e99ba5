"""A training run as its job sees it: checks, workers, and what it leaves behind."""
