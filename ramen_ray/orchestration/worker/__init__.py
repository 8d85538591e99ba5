"""What happens in a worker: one of Ray Train, a task that is the only one, or a trial."""
