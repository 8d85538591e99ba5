"""The extreme classification repository's files: its layouts in, one of them out."""
