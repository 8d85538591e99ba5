"""What a person or a cluster runs: parse, call one function, set the exit code."""
