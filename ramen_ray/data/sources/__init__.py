"""A user's own tables: CSV, TSV, JSON lines or parquet; files, folders or globs; any file system.

A source is cut into pieces, which tasks read independently, batch by batch.
"""

from ramen_ray.data.sources.cells import as_numbers, as_seconds, as_strings
from ramen_ray.data.sources.lines import first_byte, located
from ramen_ray.data.sources.pieces import ROWS_PER_PIECE, Piece, find_pieces
from ramen_ray.data.sources.reading import SourceBatch, read_cell, read_piece

__all__ = [
    "ROWS_PER_PIECE",
    "Piece",
    "SourceBatch",
    "as_numbers",
    "as_seconds",
    "as_strings",
    "find_pieces",
    "first_byte",
    "located",
    "read_cell",
    "read_piece",
]
