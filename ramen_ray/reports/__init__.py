"""What people look at: tables, plots and pages about runs, sweeps, ablations and datasets."""
