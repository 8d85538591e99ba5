"""A training run, to be read from ``fit``, its driver, through ``workers`` to the ``loop``."""
