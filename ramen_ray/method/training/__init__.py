"""The training step, its optimiser, its figures and its checkpoints."""
