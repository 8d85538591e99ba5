"""Import a user's own tables, in stages that parallel tasks can run.

Staging reads pieces of the sources and replaces ids by 64-bit hashes. Numbering gives queries and
ads consecutive numbers and sums the clicks between them. Planning decides on splits and final ids.
Writing makes the dataset directory's parts. Each stage reads the previous one's files in a staging
folder, so a process holds one piece at a time, and a few bytes for each query and ad.
"""
