"""Tasks that work on checkpoints while training goes on: pruned graphs and shortlists."""
