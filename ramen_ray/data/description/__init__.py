"""A dataset described: counts, distributions and samples."""
