"""A dataset prepared for training: token tables, clicks and edges as memory-mapped arrays.

And what is counted of it: its texts, and the statistics of the dataset.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.arrays import Booleans, Float64s, Int64s, UInt64s, map_array, ragged_positions
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import LOW, Judgements
from ramen_ray.data.store.made_folder import read_json
from ramen_ray.data.store.schemas import JUDGED, NODE_TABLES, SPLITS, ZERO_SHOT
from ramen_ray.errors import DatasetError

TOKENS_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class TokenTable:
    """The tokens of a table's texts."""

    token_ids: NDArray[Any]  # (tokens,) uint16 or int32, one text after another
    offsets: Int64s  # (texts + 1,) where each text starts
    hashes: UInt64s  # (texts,) equal for equal texts of all tables

    @classmethod
    def open(cls, folder: Path) -> "TokenTable":
        """Memory-map the table in ``folder``; processes on one machine share its pages."""
        names = ("token_ids", "offsets", "hashes")
        return cls(*(map_array(folder / f"{name}.npy") for name in names))

    def save(self, folder: Path) -> None:
        """Write the table into a new ``folder``, for :meth:`open`."""
        folder.mkdir()
        for name, array in vars(self).items():
            np.save(folder / f"{name}.npy", array)

    def __len__(self) -> int:
        return len(self.hashes)

    def lengths(self, rows: NDArray[Any]) -> Int64s:
        """Return the token counts (n,) of ``rows`` (n,)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def gather(self, rows: NDArray[Any]) -> Int64s:
        """Return the tokens of ``rows`` (n,), one text after another, as int64."""
        positions = ragged_positions(self.offsets[rows], self.lengths(rows))
        return self.token_ids[positions].astype(np.int64)


@dataclass(frozen=True)
class TextFigures:
    """What an encoder loses of a table's texts."""

    share_unknown: float  # of the tokens: those that the vocabulary does not have, such as [UNK]
    share_repeated: float  # of the texts: those that, after truncation, are as an earlier one

    @classmethod
    def of(cls, hashes: UInt64s, num_tokens: int, num_unknown: int) -> "TextFigures":
        """Sum up the hashes of texts (texts,), and tokens without special ones such as [CLS]."""
        num_repeated = len(hashes) - len(np.unique(hashes))
        return cls(num_unknown / max(num_tokens, 1), num_repeated / max(len(hashes), 1))


def measure_texts(
    folder: Path, tables: list[str], unknown: int | None, num_special: int
) -> dict[str, TextFigures]:
    """Measure the texts, and tokens but ``num_special`` a text, of ``tables`` in ``folder``.

    ``unknown`` is the token for what the vocabulary does not have, if there is one.
    """
    figures = {}
    for name in tables:
        table = TokenTable.open(folder / "tokens" / name)
        tokens = table.token_ids
        starts = [] if unknown is None else range(0, len(tokens), TOKENS_AT_ONCE)
        unknowns = [np.count_nonzero(tokens[at : at + TOKENS_AT_ONCE] == unknown) for at in starts]
        num_tokens = len(tokens) - num_special * len(table)
        figures[name] = TextFigures.of(table.hashes, num_tokens, int(sum(unknowns)))
    return figures


def count_clicks(dataset: Dataset, split: str) -> tuple[Int64s, Int64s]:
    """Count the clicks of each query of a split, in row order, and of each ad."""
    per_query = [np.empty(0, dtype=np.int64)]
    per_ad = np.zeros(dataset.num_rows("ads"), dtype=np.int64)
    for batch in dataset.batches(f"queries/{split}", ["ad_ids"]):
        per_query.append(pc.list_value_length(batch["ad_ids"]).to_numpy().astype(np.int64))
        np.add.at(per_ad, batch["ad_ids"].flatten().to_numpy(), 1)
    return np.concatenate(per_query), per_ad


def dataset_statistics(dataset: Dataset) -> dict[str, float]:
    """Count queries, ads, clicks and edges, with the averages of RAMEN's Table 9.

    These are over all train queries (documents there) and all ads (labels), with clicks or without.
    """
    statistics: dict[str, float] = {}
    for split in reversed(SPLITS):  # the last is train
        per_query, per_ad = count_clicks(dataset, split)
        statistics[f"num_{split}_queries"] = len(per_query)
        statistics[f"num_{split}_clicks"] = per_ad.sum()
    statistics |= {
        "num_ads": len(per_ad),
        "clicks_per_query": per_query.mean(),
        "queries_per_ad": per_ad.mean(),
        "share_ads_without_click": (per_ad == 0).mean(),
        "share_ads_with_one_click": (per_ad == 1).mean(),
    }
    for table in filter(dataset.has, JUDGED):
        split = table.removeprefix("judged/")
        grades = dataset.read(table)["grade"]
        statistics[f"num_{split}_judgements"] = len(grades)
        statistics[f"num_{split}_low_judgements"] = pc.sum(pc.less(grades, LOW)).as_py()
    for name in dataset.anchor_sets:
        statistics[f"{name}_num_anchors"] = dataset.num_rows(f"anchors/{name}")
        for side, nodes in NODE_TABLES.items():
            edges = f"edges/{name}/{side}"
            num_edges = dataset.num_rows(edges) if dataset.has(edges) else 0
            statistics[f"{name}_anchors_per_{side}"] = num_edges / dataset.num_rows(nodes)
    return {key: float(value) for key, value in statistics.items()}


@dataclass(frozen=True)
class Prepared:
    """Prepared arrays, each mapped on first use; train queries are shuffled, see ``query_ids``."""

    path: Path

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Content of ``prepared.json``: dataset name, statistics, anchor sets, texts, findings."""
        return dict(read_json(self.path / "prepared.json"))

    @property
    def anchor_sets(self) -> list[str]:
        """Names of the anchor sets."""
        return list(self.metadata["anchor_sets"])

    @property
    def text_figures(self) -> dict[str, TextFigures]:
        """What the encoder loses of texts, by table."""
        return {table: TextFigures(**figures) for table, figures in self.metadata["texts"].items()}

    @cached_property
    def splits(self) -> list[str]:
        """The splits that exist: train, validation, test and, for novel ads, zero_shot."""
        folder = self.path / "tokens" / "queries"
        return [split for split in (*SPLITS, ZERO_SHOT) if (folder / split).is_dir()]

    @cached_property
    def query_ids(self) -> Int64s:
        """(train queries,) int64, the id of each train query row."""
        return map_array(self.path / "query_ids.npy")

    @cached_property
    def queries(self) -> dict[str, TokenTable]:
        """Token tables of the queries by split."""
        folder = self.path / "tokens" / "queries"
        return {split: TokenTable.open(folder / split) for split in self.splits}

    @cached_property
    def ads(self) -> TokenTable:
        """Token table of the ads."""
        return TokenTable.open(self.path / "tokens" / "ads")

    @cached_property
    def occurring_tokens(self) -> Int64s:
        """(tokens,) int64, the tokens that any text of any table has, ascending."""
        return np.asarray(np.load(self.path / "occurring_tokens.npy"))

    @cached_property
    def clicks(self) -> dict[str, Csr]:
        """Clicks by split, query rows x ads, all with the same weight."""
        opened = {split: Csr.open(self.path / "clicks" / split) for split in self.splits}
        return {split: Csr(clicks.indptr, clicks.indices) for split, clicks in opened.items()}

    @cached_property
    def clicked_queries(self) -> Int64s:
        """(n,) int64, the rows of train queries that have clicks: what batches are drawn from."""
        return self.clicks["train"].filled_rows

    @cached_property
    def weighted_clicks(self) -> Csr:
        """Train clicks, train query rows x ads, with their weights if these differ."""
        return Csr.open(self.path / "clicks" / "train")

    def traffic(self, split: str) -> Float64s:
        """(queries,) float64, the clicks that each query of a held-out split had, by weight."""
        return map_array(self.path / "clicks" / split / "traffic.npy")

    def trained_queries(self, split: str) -> Booleans:
        """(queries,) bool, which queries of a split have the tokens of a train query's text."""
        return np.isin(self.queries[split].hashes, self.queries["train"].hashes)

    def filters(self, split: str) -> Int64s:
        """(pairs, 2) int64 (query row, ad) pairs to drop from a split's predictions."""
        return map_array(self.path / "filters" / f"{split}.npy")

    def judgements(self, split: str, sources: Collection[str] = ()) -> Judgements | None:
        """Return the judgements of a split's query rows by some sources, or all; None without.

        Raises a DatasetError if there are none by one of ``sources``.
        """
        file = self.path / "judged" / f"{split}.parquet"
        if not file.exists():
            if sources:
                raise DatasetError(f"the {split} split of {self.metadata['name']} has no judgement")
            return None
        judged = Judgements.of(pq.read_table(file), sources)
        if split == "train":  # ids are those of the dataset, rows are shuffled
            judged = replace(judged, queries=np.argsort(self.query_ids)[judged.queries])
        return judged

    def candidates(self, split: str) -> Int64s:
        """(candidates,) int64, the ads that are searched for a split's queries, ascending."""
        novel = np.load(self.path / "novel_ads.npy")[:, 0]
        ads = np.arange(len(self.ads))
        if split == ZERO_SHOT:
            return np.sort(novel)
        # at the time of the validation queries, novel ads do not exist yet
        return np.setdiff1d(ads, novel) if split == "validation" else ads

    def anchors(self, anchor_set: str) -> TokenTable:
        """Token table of an anchor set."""
        return TokenTable.open(self.path / "tokens" / "anchors" / anchor_set)

    def edges(self, anchor_set: str, side: str) -> Csr:
        """Edges of an anchor set: train query rows x anchors, or, on side ``ad``, ads x anchors."""
        return Csr.open(self.path / "edges" / anchor_set / side)

    @cached_property
    def train_click_counts(self) -> Int64s:
        """(ads,) int64, number of train clicks of each ad."""
        return map_array(self.path / "train_click_counts.npy")
