"""Descriptions of datasets: counts, distributions and samples."""
