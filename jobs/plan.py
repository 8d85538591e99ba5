"""Say how much memory a training on data of given sizes needs. Nothing is run.

Example:
    python jobs/plan.py --queries 540M --ads 360M --anchors 900M --edges-per-node 40
"""

import re
from typing import Literal

import psutil

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import ConfigError, NotNegative, PositiveFloat, Section
from ramen_ray.planning import ENCODERS, Sizes, memory
from ramen_ray.presets import PRESETS

SCALES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


class PlanSettings(Section):
    """Sizes of the data, and what is trained on them."""

    queries: str
    """Train queries: 5000, 320K, 540M, 1.2B."""
    ads: str
    """Ads."""
    anchors: tuple[str, ...] = ()
    """Anchors of each anchor set."""
    edges_per_node: NotNegative = 10.0
    """Edges of a query, and of an ad, in each anchor set."""
    clicks_per_query: NotNegative = 2.0
    """Clicks of a query."""
    tokens_per_text: PositiveFloat = 8.0
    """Tokens of a text, special tokens included."""
    encoder: Literal["bag", "minilm", "distilbert"] = "distilbert"
    """A bag of token embeddings, MiniLM (22M weights), or DistilBERT (66M)."""
    preset: Literal["ramen-ance", "ramen-ngame", "unidec-320k"] = "ramen-ance"
    """The method: base, graph, walks and pruning."""


def main() -> None:
    """Print what each stage needs, and what this machine has."""
    settings = parse_settings(PlanSettings, __doc__)
    queries, ads, *anchors = map(_count, (settings.queries, settings.ads, *settings.anchors))
    texts = settings.tokens_per_text, tuple(anchors), settings.edges_per_node
    sizes = Sizes(queries, ads, queries * settings.clicks_per_query, *texts)
    config = PRESETS[settings.preset]()
    for stage, parts in memory(sizes, config, *ENCODERS[settings.encoder]).items():
        if listed := [f"{what} {size / 1e9:,.1f}" for what, size in parts.items() if size]:
            print(f"{stage}: {sum(parts.values()) / 1e9:,.1f} GB ({', '.join(listed)})")
    print(f"this machine: {psutil.virtual_memory().total / 1e9:,.1f} GB")


def _count(text: str) -> int:
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.replace(",", ""), re.IGNORECASE)
    count = round(float(number[1]) * SCALES[number[2].upper()]) if number else 0
    if not count:
        raise ConfigError(f"{text!r} is not a count; write it as 5000, 320K, 2.46M or 1.2B")
    return count


if __name__ == "__main__":
    run_job(main)
