"""A description of a dataset: figures and a few sample texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.description.degrees import ClickCounts, EdgeCounts
from ramen_ray.data.description.graph_signal import GraphSignal
from ramen_ray.data.description.samples import SampleQuery

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True)
class Hub:
    """An anchor with many edges.

    Attributes:
        text: the anchor's text.
        num_queries: number of train queries linked to it.
        num_ads: number of ads linked to it.
        share: its share of the anchor set's edges.
    """

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
class Distribution:
    """How many clicks or edges each node has.

    Attributes:
        of: what is counted: clicks, or the name of an anchor set for its edges.
        per: the kind of node: query, ad or anchor.
        values: (nodes,) int64.
    """

    of: str
    per: str
    values: Int64s


@dataclass(frozen=True)
class TokenLengths:
    """Token counts of a table's texts, or of a sample of them.

    Attributes:
        num_texts: rows of the table.
        lengths: (texts counted,) int64, before truncation, with special tokens.
    """

    num_texts: int
    lengths: Int64s


@dataclass(frozen=True)
class Description:
    """The figures and samples that describe a dataset.

    Attributes:
        metadata: the content of ``dataset.json``.
        statistics: see :func:`ramen_ray.data.description.statistics.dataset_statistics`.
        clicks: by split.
        edges: by anchor set.
        groups: (ads,) bool by popularity group: head, torso, tail.
        hubs: the anchors with most edges by anchor set, most first.
        tokens: token counts by table.
        max_length: texts with more tokens are truncated in training.
        tokenizer: the encoder whose tokenizer counted the tokens.
        samples: a few train queries.
        signals: what each anchor set could bring.
    """

    metadata: Mapping[str, Any]
    statistics: Mapping[str, float]
    clicks: Mapping[str, ClickCounts]
    edges: Mapping[str, EdgeCounts]
    groups: Mapping[str, NDArray[np.bool_]]
    hubs: Mapping[str, list[Hub]]
    tokens: Mapping[str, TokenLengths]
    max_length: int
    tokenizer: str
    samples: list[SampleQuery]
    signals: Mapping[str, GraphSignal]

    @property
    def distributions(self) -> dict[str, Distribution]:
        """Clicks or edges per node, by metric name; clicks are those of the train split."""
        train = self.clicks["train"]
        found = {
            "clicks_per_query": Distribution("clicks", "query", train.per_query),
            "queries_per_ad": Distribution("clicks", "ad", train.per_ad),
        }
        for name, edges in self.edges.items():
            found |= {
                f"{name}_anchors_per_query": Distribution(name, "query", edges.per_query),
                f"{name}_anchors_per_ad": Distribution(name, "ad", edges.per_ad),
                f"{name}_nodes_per_anchor": Distribution(name, "anchor", edges.per_anchor),
            }
        return found

    @property
    def shares(self) -> dict[str, Share]:
        """Shares of nodes without clicks or edges, of test clicks on rare ads, by metric name."""
        queries = self.clicks["train"].per_query
        train, test = self.clicks["train"].per_ad, self.clicks["test"].per_ad
        zero, one = "ads without a train click", "ads with exactly one train click"
        found = {
            "queries_without_click": _share("train queries without a click", queries == 0),
            "ads_without_click": _share(zero, train == 0),
            "ads_with_one_click": _share(one, train == 1),
            "test_clicks_on_ads_without_click": _share(f"test clicks on {zero}", train == 0, test),
            "test_clicks_on_ads_with_one_click": _share(f"test clicks on {one}", train == 1, test),
        }
        if not self.edges:
            return found
        linked_queries = np.any([edges.per_query for edges in self.edges.values()], axis=0)
        linked_ads = np.any([edges.per_ad for edges in self.edges.values()], axis=0)
        found |= {
            "queries_without_edge": _share("train queries without any edge", ~linked_queries),
            "ads_without_edge": _share("ads without any edge", ~linked_ads),
        }
        for name, edges in self.edges.items():
            found |= {
                f"{name}_queries_without_edge": _share(
                    f"train queries without an edge to {name}", edges.per_query == 0
                ),
                f"{name}_ads_without_edge": _share(
                    f"ads without an edge to {name}", edges.per_ad == 0
                ),
                f"{name}_anchors_without_edge": _share(
                    f"{name} anchors without an edge", edges.per_anchor == 0
                ),
            }
        return found

    def group_shares(self, group: str) -> dict[str, Share]:
        """A popularity group's share of the ads, the train clicks and the test clicks."""
        member = self.groups[group]
        return {
            "ads": _share("ads", member),
            "train_clicks": _share("train clicks", member, self.clicks["train"].per_ad),
            "test_clicks": _share("test clicks", member, self.clicks["test"].per_ad),
        }

    def share_too_long(self, table: str) -> Share:
        """The share of the counted texts of ``table`` that have more than ``max_length`` tokens."""
        return _share(table, self.tokens[table].lengths > self.max_length)

    @property
    def metrics(self) -> dict[str, float]:
        """All figures by name, the statistics first."""
        found = dict(self.statistics)
        for name, distribution in self.distributions.items():
            summary = quantiles(distribution.values)
            found |= {f"{name}/{key}": value for key, value in summary.items()}
        found |= {f"share_{name}": share.value for name, share in self.shares.items()}
        for group in self.groups:
            shares = self.group_shares(group)
            found |= {f"{group}/share_{name}": share.value for name, share in shares.items()}
        for table, tokens in self.tokens.items():
            summary = quantiles(tokens.lengths)
            found |= {f"tokens/{table}/{key}": value for key, value in summary.items()}
            found[f"tokens/{table}/share_too_long"] = self.share_too_long(table).value
        for name, signal in self.signals.items():
            found |= {f"signal/{name}/{key}": value for key, value in signal.metrics.items()}
        return found


def quantiles(values: Int64s) -> dict[str, float]:
    """Return median, p90, p99 and max of ``values`` (n,), n > 0.

    A quantile q is the smallest value that is at least as large as a fraction q of the values.
    """
    cuts = np.quantile(values, list(QUANTILES.values()), method="inverted_cdf")
    return dict(zip(QUANTILES, cuts.astype(float).tolist(), strict=True))


def _share(what: str, member: NDArray[np.bool_], counts: Int64s | None = None) -> Share:
    """Count the members among all nodes or, given the nodes' ``counts``, sum their counts."""
    if counts is None:
        return Share(what, int(member.sum()), len(member))
    return Share(what, int(counts[member].sum()), int(counts.sum()))
