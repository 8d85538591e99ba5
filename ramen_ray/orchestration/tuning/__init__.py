"""Many runs: sweeps and ablations."""
