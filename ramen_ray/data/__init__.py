"""The dataset directory, its importers and the arrays prepared from it; only pyarrow and numpy."""
