"""Programs that run in the rivals' own environments; they know nothing of this project."""
