"""Tables, plots and pages about runs, sweeps, ablations and datasets."""
