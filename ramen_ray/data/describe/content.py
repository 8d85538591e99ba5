"""A description of a dataset: figures and a few sample texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.prepared.folder import TextFigures

NUM_SHUFFLES = 10
OF_CLICKS, FEWEST_LIFT = 0.995, 2.0
PER_CENT = {"median": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass(frozen=True)
class Distribution:
    """How often (values,) each of some ascending ``values`` (values,) occurs, all int64."""

    values: Int64s
    counts: Int64s

    @classmethod
    def of(cls, values: Int64s) -> "Distribution":
        """Count ``values`` (n,), at least one, in any order."""
        return cls(*np.unique(values, return_counts=True))

    @property
    def size(self) -> int:
        """How many were counted."""
        return int(self.counts.sum())

    @property
    def total(self) -> int:
        """The sum of all that were counted."""
        return int(self.values @ self.counts)

    @property
    def quantiles(self) -> dict[str, float]:
        """Median, p90, p99 and max: the smallest value that such a share does not exceed."""
        up_to = 100 * np.cumsum(self.counts)
        wanted = np.array([*PER_CENT.values()]) * self.size
        values = self.values[np.searchsorted(up_to, wanted)]
        return dict(zip(PER_CENT, values.astype(float).tolist(), strict=True))


@dataclass(frozen=True)
class Hub:
    """An anchor with many edges, and its ``share`` of its set's edges."""

    text: str
    num_queries: int
    num_ads: int
    share: float


@dataclass(frozen=True)
class Share:
    """A part of a whole, both counted; ``what`` names the part."""

    what: str
    part: int
    whole: int

    @property
    def value(self) -> float:
        """The part divided by the whole; 0 if the whole is 0."""
        return self.part / self.whole if self.whole else 0.0


@dataclass(frozen=True)
class SplitSize:
    """A split's number of queries and of clicks."""

    num_queries: int
    num_clicks: int
    weight: float | None  # the sum of the clicks' weights, if the split has any


@dataclass(frozen=True)
class Degrees:
    """How many clicks, or edges of an anchor set ``of``, there are per query, ad or anchor."""

    graph: str
    per: str
    distribution: Distribution


@dataclass(frozen=True)
class PopularityGroup:
    """Ads with many or with few train clicks."""

    clicks: tuple[int, int] | None  # the least and the most of one ad, None without ads
    shares: Mapping[str, Share]  # the group's of the ads, the train clicks and the test clicks


@dataclass(frozen=True)
class TokenLengths:
    """Token counts of a table's texts, or of a sample of them; the table has ``num_texts``."""

    num_texts: int
    lengths: Distribution  # before truncation, with special tokens
    figures: TextFigures  # unknown tokens before truncation, and different texts after it

    def share_above(self, limit: int) -> Share:
        """Return the share of the counted texts that have more tokens."""
        above = self.lengths.counts[self.lengths.values > limit].sum()
        return Share(f"over {limit}", int(above), self.lengths.size)


@dataclass(frozen=True)
class SampleQuery:
    """The text of a train query, those of its ads, and by anchor set those of its anchors."""

    text: str
    ads: list[str]
    anchors: dict[str, list[str]]


@dataclass(frozen=True)
class Shared:
    """How many of some pairs have a third thing in common, and how many by chance."""

    pairs: int  # clicks whose query and ad both have edges; or that a set of one side joins
    shared: int  # clicks whose query and ad share an anchor; or pairs that share a click
    by_chance: float  # ``shared`` if one end is shuffled among the pairs, on average

    @property
    def share(self) -> float:
        """``shared`` over ``pairs``."""
        return self.shared / self.pairs if self.pairs else 0.0

    @property
    def share_by_chance(self) -> float:
        """``by_chance`` over ``pairs``."""
        return self.by_chance / self.pairs if self.pairs else 0.0

    @property
    def lift(self) -> float:
        """``shared`` over ``by_chance``, which is at least what the shuffles can resolve."""
        return self.shared / max(self.by_chance, 1 / NUM_SHUFFLES)


@dataclass(frozen=True)
class GraphSignal:
    """What an anchor set could bring."""

    sides: tuple[str, ...]  # those with edges: query, ad or both
    edges_per_query: float  # on average over the train queries
    edges_per_ad: float  # on average over the ads
    test_clicks: int
    reached_clicks: int  # those of them on ads without a train click but with edges
    shared: Shared  # over the train clicks, or over the pairs that a set of one side joins
    shared_beyond_words: Shared  # over those of them that have no word in common
    edges: int
    leaking_edges: int  # those of them that join a held-out query to its answer

    @property
    def is_void(self) -> bool:
        """Whether it was made from the clicks themselves, so that its lift says nothing."""
        return self.shared.share >= OF_CLICKS and self.shared.lift >= FEWEST_LIFT

    @property
    def metrics(self) -> dict[str, float]:
        """What is worth comparing between graphs, by name; only what there is."""
        metrics = {"share_leaking_edges": self.leaking_edges / max(self.edges, 1)}
        if "ad" in self.sides:
            metrics["share_test_clicks_reached"] = self.reached_clicks / max(self.test_clicks, 1)
        if self.shared.pairs and not self.is_void:
            is_whole = len(self.sides) == 2
            what = "clicks_with_shared_anchor" if is_whole else "joined_pairs_with_shared_click"
            metrics |= {
                f"share_{what}": self.shared.share,
                "share_by_chance": self.shared.share_by_chance,
                "lift": self.shared.lift,
            }
            if self.shared_beyond_words.pairs:
                metrics["lift_beyond_words"] = self.shared_beyond_words.lift
        return metrics


@dataclass(frozen=True)
class Description:
    """The figures and samples that describe a dataset; small, however large the dataset is."""

    metadata: Mapping[str, Any]  # the content of dataset.json
    statistics: Mapping[str, float]  # see describe.counts.dataset_statistics
    splits: Mapping[str, SplitSize]
    degrees: Mapping[str, Degrees]  # by metric name; clicks are those of the train split
    shares: Mapping[str, Share]  # by metric name; see describe.counts.node_shares
    groups: Mapping[str, PopularityGroup]  # head, torso and tail
    hubs: Mapping[str, list[Hub]]  # by anchor set, most edges first
    tokens: Mapping[str, TokenLengths]  # by table
    max_length: int  # texts with more tokens are truncated in training
    tokenizer: str  # the encoder whose tokenizer counted the tokens
    samples: list[SampleQuery]
    signals: Mapping[str, GraphSignal]  # by anchor set

    @property
    def metrics(self) -> dict[str, float]:
        """All figures by name, the statistics first."""
        figures: dict[str, Mapping[str, float]] = {
            name: degrees.distribution.quantiles for name, degrees in self.degrees.items()
        }
        for name, group in self.groups.items():
            figures[name] = {f"share_{key}": share.value for key, share in group.shares.items()}
        for table, tokens in self.tokens.items():
            figures[f"tokens/{table}"] = tokens.lengths.quantiles | {
                "share_too_long": tokens.share_above(self.max_length).value,
                "share_unknown": tokens.figures.share_unknown,
                "share_repeated": tokens.figures.share_repeated,
            }
        figures |= {f"signal/{name}": signal.metrics for name, signal in self.signals.items()}
        shares = {f"share_{name}": share.value for name, share in self.shares.items()}
        named = {
            f"{group}/{name}": value
            for group, values in figures.items()
            for name, value in values.items()
        }
        return {**self.statistics, **shares, **named}
