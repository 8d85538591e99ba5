"""Time and memory of every stage at growing sizes."""
