"""IRENE's novel splits: some ads appear only after training, in the test."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Booleans, Int64s
from ramen_ray.data.checks import check
from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.data.store.dataset import (
    WHILE_READ,
    Dataset,
    DatasetError,
    DatasetWriter,
    new_dataset,
)
from ramen_ray.data.store.lists import click_pairs, list_entries
from ramen_ray.data.store.schemas import ZERO_SHOT
from ramen_ray.naming import joined_name

ChosenClicks = Callable[[Int64s, Int64s], Booleans]
"""Takes the query and the ad of each click, (clicks,) ids each; flags the clicks to keep."""

_NOVEL, _ONE_SHOT = range(2)


def make_novel_split(
    dataset: Path,
    output: Path,
    novel_fraction: float = 0.1,
    one_shot: bool = False,
    seed: int = 0,
    keep_ad_edges: bool = False,
) -> Dataset:
    """Make some ads of a dataset novel: they have no clicks in training, only in the test.

    Follows "Datasets creation details" of the IRENE paper. Train and validation queries keep their
    clicks on the other, seen ads. Queries that lose all of them are left out, as in the paper, with
    their edges and filters; a train query that had no click to lose stays.
    The test split stays whole (the generalised setting, which searches all ads); ``zero_shot`` has
    its clicks on novel ads (searched among the novel ads). Ads and anchors keep their ids. Novel
    ads lose their edges, because they did not exist when the graph was made; ``keep_ad_edges`` is
    for graphs that know an ad before it has clicks. Anchors without edges stay; an anchor set
    without edges is dropped.

    Args:
        dataset: Dataset directory to split.
        output: Dataset directory to write; must not exist.
        novel_fraction: Share of the ads that become novel, drawn uniformly.
        one_shot: Leave each novel ad one of its train clicks, drawn uniformly, if it has any.
        seed: Seed of both draws.
        keep_ad_edges: Leave novel ads their own edges.

    Raises:
        DatasetError: the dataset is not usable, the fraction makes no or all ads novel, or a split
            would be empty; nothing is left at ``output``.
    """
    parent = Dataset(dataset)
    metadata = _metadata(parent, novel_fraction, one_shot, seed)
    check(parent)
    if parent.has("novel_ads"):
        raise DatasetError(f"{parent.path} has novel ads already; split the dataset it comes from")
    novel = _draw_novel_ads(parent, novel_fraction, seed)
    revealed = _draw_revealed_queries(parent, novel, seed) if one_shot else np.full(len(novel), -1)
    if keep_ad_edges:
        metadata["novel_split"]["keep_ad_edges"] = True
    with new_dataset(output, **metadata) as writer, parent.unchanged(WHILE_READ):
        split = _Split(parent, writer)
        split.copy("ads", "queries/test", "filters/test")
        writer.write("novel_ads", pa.table({"ad_id": np.flatnonzero(novel)}))
        train = split.write_queries(
            "train", "train", lambda queries, ads: ~novel[ads] | (revealed[ads] == queries)
        )
        validation = split.write_queries("validation", "validation", lambda _, ads: ~novel[ads])
        split.write_filters("validation", "validation", validation, ~novel)
        zero_shot = split.write_queries("test", ZERO_SHOT, lambda _, ads: novel[ads])
        split.write_filters("test", ZERO_SHOT, zero_shot, novel)
        for name in parent.anchor_sets:
            split.write_graph(name, train, ~novel | keep_ad_edges)
    return Dataset(output)


def _draw_novel_ads(parent: Dataset, novel_fraction: float, seed: int) -> Booleans:
    """Flag the ads (ads,) with the lowest draws."""
    num_ads = parent.num_rows("ads")
    if not 0 < novel_fraction < 1:
        raise DatasetError(f"the novel fraction must be between 0 and 1, not {novel_fraction}")
    num_novel = round(novel_fraction * num_ads)
    if not 0 < num_novel < num_ads:
        raise DatasetError(
            f"a novel fraction of {novel_fraction} makes {num_novel} of the {num_ads} ads of "
            f"{parent.path} novel; choose another"
        )
    novel = np.zeros(num_ads, dtype=bool)
    novel[np.argsort(keyed_hash((seed, _NOVEL), np.arange(num_ads)))[:num_novel]] = True
    return novel


def _draw_revealed_queries(parent: Dataset, novel: Booleans, seed: int) -> Int64s:
    """Draw one train query (ads,) of each novel ad; -1 if it has none, and for seen ads."""
    lowest = np.full(len(novel), np.iinfo(np.uint64).max)
    revealed = np.full(len(novel), -1)
    for rows in parent.batches("queries/train"):
        queries, ads = click_pairs(rows)
        queries, ads = queries[novel[ads]], ads[novel[ads]]
        draws = keyed_hash((seed, _ONE_SHOT), queries * len(novel) + ads)  # unique, as clicks are
        np.minimum.at(lowest, ads, draws)
        best = draws == lowest[ads]
        revealed[ads[best]] = queries[best]
    return revealed


def _metadata(parent: Dataset, novel_fraction: float, one_shot: bool, seed: int) -> dict[str, Any]:
    own = {"name": joined_name(parent.name, "one-shot" if one_shot else "zero-shot")}
    made = {
        "parent": parent.name,
        "parent_fingerprint": parent.fingerprint,
        "novel_fraction": novel_fraction,
        "one_shot": one_shot,
        "seed": seed,
    }
    return {**parent.metadata, **own, "novel_split": made}


@dataclass(frozen=True)
class _Split:
    """Writes what is kept of the parent's tables."""

    parent: Dataset
    writer: DatasetWriter

    def copy(self, *tables: str) -> None:
        """Copy the tables, as far as the parent has them."""
        for table in tables:
            self._write_if_any(table, self._rows(table))

    def write_queries(self, source: str, target: str, chosen: ChosenClicks) -> Int64s:
        """Write the queries of split ``source`` that do not lose all clicks as split ``target``.

        Returns:
            the new ids (queries of ``source``,) by old id, -1 for a query that is left out.
        """
        table = f"queries/{source}"
        new_ids = np.full(self.parent.num_rows(table), -1)
        num_clicks = 0

        def renumbered() -> Iterator[pa.RecordBatch]:
            nonlocal num_clicks
            first = 0
            for rows in self.parent.batches(table):
                kept = _keep_clicks(rows, chosen(*click_pairs(rows)))
                ids = np.arange(first, first + len(kept))
                new_ids[kept["query_id"].to_numpy()] = ids
                first += len(kept)
                num_clicks += len(kept["ad_ids"].flatten())
                yield kept.set_column(0, "query_id", pa.array(ids))

        self._write_if_any(f"queries/{target}", renumbered())
        if not num_clicks:
            which = "novel" if target == ZERO_SHOT else "seen"
            raise DatasetError(
                f"no {source} query of {self.parent.path} has a click on a {which} ad; choose "
                f"another novel fraction or seed"
            )
        return new_ids

    def write_filters(
        self, source: str, target: str, new_ids: Int64s, chosen_ads: Booleans
    ) -> None:
        """Write the filter pairs of the kept queries and ``chosen_ads`` (ads,)."""
        pairs = self._of_queries(self._rows(f"filters/{source}"), new_ids)
        self._write_if_any(f"filters/{target}", self._of_ads(pairs, chosen_ads))

    def write_graph(self, anchor_set: str, new_ids: Int64s, chosen_ads: Booleans) -> None:
        """Write an anchor set with the edges of the kept train queries and ``chosen_ads``."""
        query, ad = f"edges/{anchor_set}/query", f"edges/{anchor_set}/ad"
        has_query = self._write_if_any(query, self._of_queries(self._rows(query), new_ids))
        has_ad = self._write_if_any(ad, self._of_ads(self._rows(ad), chosen_ads))
        if has_query or has_ad:
            self.copy(f"anchors/{anchor_set}")

    def _rows(self, table: str) -> Iterator[pa.RecordBatch]:
        return self.parent.batches(table) if self.parent.has(table) else iter(())

    @staticmethod
    def _of_queries(batches: Iterable[pa.RecordBatch], new_ids: Int64s) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            ids = new_ids[rows["query_id"]]
            yield rows.set_column(0, "query_id", pa.array(ids)).filter(pa.array(ids >= 0))

    @staticmethod
    def _of_ads(
        batches: Iterable[pa.RecordBatch], chosen_ads: Booleans
    ) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            yield rows.filter(pa.array(chosen_ads[rows["ad_id"]]))

    def _write_if_any(self, table: str, batches: Iterable[pa.RecordBatch]) -> bool:
        """Write a table unless it would be empty; returns whether it was written."""
        filled = (batch for batch in batches if len(batch))
        first = next(filled, None)
        if first is None:
            return False
        self.writer.write(table, chain([first], filled))
        return True


def _keep_clicks(rows: pa.RecordBatch, kept: Booleans) -> pa.RecordBatch:
    """Keep the flagged clicks, with their weights, and drop queries that lose all of theirs."""
    row_of_click, _ = list_entries(rows["ad_ids"])
    left = np.bincount(row_of_click[kept], minlength=len(rows))
    had_none = np.bincount(row_of_click, minlength=len(rows)) == 0
    offsets = pa.array(np.concatenate([[0], np.cumsum(left)]), pa.int32())
    for column in {"ad_ids", "weights"} & set(rows.column_names):
        entries = rows[column].flatten().filter(pa.array(kept))
        lists = pa.ListArray.from_arrays(offsets, entries)
        rows = rows.set_column(rows.column_names.index(column), column, lists)
    return rows.filter(pa.array((left > 0) | had_none))
