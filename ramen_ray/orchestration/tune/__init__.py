"""Experiments of many runs: sweeps and ablations."""
