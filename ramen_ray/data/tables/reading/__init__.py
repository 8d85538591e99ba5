"""A user's files as batches of checked rows: found, decoded, parsed, converted, loaded."""
