"""What is computed from a checkpoint while training goes on: pruned graphs and shortlists."""
