"""Ray itself: joining or starting it, its resources, and work that one process at a time does."""
