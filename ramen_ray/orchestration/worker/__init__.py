"""What happens in a worker: a process of Ray Train, or a trial's own."""
