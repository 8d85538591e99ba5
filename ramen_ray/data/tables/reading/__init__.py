"""A user's files as checked rows in DuckDB; the modules in the order of a cell's way there.

``files`` finds them. ``table_file`` reads a file of any format, and ``records`` those of a text
file. ``columns`` says how cells are converted, by ``cells``, and which are wrong. ``loading`` hands
good rows to the engine.
"""
