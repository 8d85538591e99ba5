"""The training step, its optimiser, its collectives and its checkpoints."""
