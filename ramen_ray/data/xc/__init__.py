"""Import all layouts of the extreme classification repository, and export one of them."""
