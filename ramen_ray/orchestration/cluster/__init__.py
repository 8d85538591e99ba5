"""Ray itself: joining or starting it, and its resources."""
