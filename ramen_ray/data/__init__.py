"""The dataset directory, its importers and the tables prepared from it; pyarrow and numpy only."""
