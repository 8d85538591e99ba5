"""What there is to say about a dataset: counts, distributions and samples."""
