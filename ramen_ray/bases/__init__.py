"""The bases that RAMEN's regularisers are added to: names for combinations of parts."""

from collections.abc import Mapping
from typing import Literal

from ramen_ray.bases.ance import ANCE
from ramen_ray.bases.combination import Combination
from ramen_ray.bases.depsl import DEPSL
from ramen_ray.bases.in_batch import IN_BATCH
from ramen_ray.bases.ngame import NGAME
from ramen_ray.bases.unidec import UNIDEC

BaseName = Literal["in_batch", "ance", "ngame", "depsl", "unidec"]
BASES: Mapping[BaseName, Combination] = {
    "in_batch": IN_BATCH,
    "ance": ANCE,
    "ngame": NGAME,
    "depsl": DEPSL,
    "unidec": UNIDEC,
}
