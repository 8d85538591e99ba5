"""The error of data that cannot be used."""

from ramen_ray.errors import UserError


class DatasetError(UserError):
    """A dataset or a table is missing, incomplete or inconsistent; the message says where."""
