"""The importer's old way to an anchor set's names; see :mod:`ramen_ray.data.tables.anchor_sets`."""

from ramen_ray.data.tables.anchor_sets import check_spelling as check_spelling
