"""What happens in a worker of Ray Train."""
