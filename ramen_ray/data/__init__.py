"""The dataset directory, what is imported into it and the arrays prepared from it."""
