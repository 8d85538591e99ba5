"""Work before training: imports, prepared arrays, walked and co-session graphs."""
