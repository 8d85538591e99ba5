"""UniDEC: DEPSL, plus a classifier of each ad that is trained with the encoder."""

from dataclasses import replace

from ramen_ray.bases.depsl import DEPSL

UNIDEC = replace(DEPSL, heads="classifier")
