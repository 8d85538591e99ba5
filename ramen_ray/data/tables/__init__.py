"""A user's own tables, read into DuckDB and written as a dataset directory.

A table's files are read as streams of Arrow batches whose cells are checked
(:mod:`~ramen_ray.data.tables.reading.loading`). What follows is SQL on one connection
(:mod:`~ramen_ray.data.engine`), which spills to a folder beside the output.
"""
