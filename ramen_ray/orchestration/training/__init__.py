"""A training run: its folder, its workers, and what it leaves behind."""
