"""The dataset directory: tables on disk, their schemas, and how they are read and written."""
