"""Import a user's own tables, in stages that tasks can share out.

Staging reads pieces of the sources and replaces ids by 64-bit hashes; numbering gives queries and
ads consecutive numbers and sums the clicks between them; planning decides on splits and final ids;
writing makes the dataset directory's parts. The stages meet in files of one staging folder, so
a process holds one piece at a time, and some bytes for every query and ad.
"""
