"""A user's files as checked rows in DuckDB; the modules in the order of a cell's way there.

``files`` finds them. ``lines`` decodes text files in blocks of whole records, which ``delimited``
(CSV, TSV) and ``json_lines`` parse; ``table_file`` reads a file of any format so. ``columns`` says
how cells are converted, by ``cells``, and which are wrong. ``loading`` hands good rows to the
engine.
"""
