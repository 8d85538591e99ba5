"""IRENE's novel splits: some ads appear only after training, in the test."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ramen_ray.data.arrays import Booleans, Int64s, click_pairs, to_lists
from ramen_ray.data.engine import engine, run, stream
from ramen_ray.data.leaks import texts_of
from ramen_ray.data.prepared.hashing import keyed_hash
from ramen_ray.data.splits.kept import Kept, lowest, new_dataset_from, write_kept
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, ZERO_SHOT

_NOVEL, _ONE_SHOT = range(2)  # keys of the two draws
_MADE_FROM = {"train": "train", "validation": "validation", ZERO_SHOT: "test"}
"""By split that is written, the parent's split that it has queries of."""


@dataclass(frozen=True)
class NovelSettings:
    """Which ads become novel, and what training still sees of them.

    Attributes:
        novel_fraction: Share of the ads that become novel, drawn uniformly.
        one_shot: Leave each novel ad one of its train clicks, drawn uniformly, if it has any.
        seed: Seed of both draws.
        keep_ad_edges: Leave novel ads and their texts all edges, for graphs that know an ad before
            it has clicks.
        unseen_texts: Also leave out train queries, and clicks on seen ads, with a novel ad's text.
    """

    novel_fraction: float = 0.1
    one_shot: bool = False
    seed: int = 0
    keep_ad_edges: bool = False
    unseen_texts: bool = False


def make_novel_split(
    dataset: Path, output: Path, settings: NovelSettings = NovelSettings()
) -> Dataset:
    """Make some ads of a dataset novel: they have no clicks in training, only in the test.

    Follows "Datasets creation details" of the IRENE paper. Train and validation queries keep their
    clicks on seen ads; those that lose all are left out, with their edges and filters. The test
    split stays whole; ``zero_shot`` has its clicks on novel ads. Ads and anchors keep their ids. An
    edge is left out if an end has a novel ad's text: the ad did not exist when the graph was made.
    Raises a DatasetError if the dataset is not usable, the fraction makes no or all ads novel, a
    split would be empty, or ``output`` exists.
    """
    parent = Dataset(dataset)
    if parent.has("novel_ads"):
        raise DatasetError(f"{parent.path} has novel ads already; split the dataset it comes from")
    kind = "one-shot" if settings.one_shot else "zero-shot"
    with new_dataset_from(parent, output, kind, "novel_split", asdict(settings)) as writer:
        novel = _draw_novel_ads(parent, settings)
        of_novel_text = _find_novel_texts(parent, novel, writer.folder)
        left_out = of_novel_text[TRAIN] & settings.unseen_texts
        hidden = of_novel_text["ads"] if settings.unseen_texts else novel
        revealed = np.full(len(novel), -1)
        if settings.one_shot:
            revealed = _draw_revealed_queries(parent, novel, left_out, settings.seed)
        for table in ("ads", "queries/test", "filters/test", "judged/test"):
            write_kept(parent, table, {}, writer)
        writer.write("novel_ads", pa.table({"ad_id": np.flatnonzero(novel)}))

        def visible(rows: pa.RecordBatch) -> pa.RecordBatch:
            rows = rows.filter(pa.array(~left_out[rows["query_id"]]))
            queries, ads = click_pairs(rows)
            return _keep_clicks(rows, ~hidden[ads] | (revealed[ads] == queries))

        train = _write_queries(parent, "train", visible, writer)
        _write_pairs(parent, "judged/train", ~novel, train, writer)
        validation = _write_held_out(parent, "validation", ~novel, writer)
        _write_pairs(parent, "judged/validation", ~novel, validation, writer)
        _write_held_out(parent, ZERO_SHOT, novel, writer)
        cut = {table: rows & (not settings.keep_ad_edges) for table, rows in of_novel_text.items()}
        for name in parent.anchor_sets:
            written = [_write_edges(parent, name, side, train, cut, writer) for side in NODE_TABLES]
            if any(written):
                write_kept(parent, f"anchors/{name}", {}, writer)
    return Dataset(output)


def _draw_novel_ads(parent: Dataset, settings: NovelSettings) -> Booleans:
    """Flag the ads (ads,) with the lowest draws."""
    num_ads = parent.num_rows("ads")
    fraction = settings.novel_fraction
    if not 0 < fraction < 1:
        raise DatasetError(f"the novel fraction must be between 0 and 1, not {fraction}")
    num_novel = round(fraction * num_ads)
    if not 0 < num_novel < num_ads:
        raise DatasetError(
            f"a novel fraction of {fraction} makes {num_novel} of the {num_ads} ads of "
            f"{parent.path} novel; choose another"
        )
    return lowest(keyed_hash((settings.seed, _NOVEL), np.arange(num_ads)), num_novel)


def _find_novel_texts(parent: Dataset, novel: Booleans, aside: Path) -> dict[str, Booleans]:
    """Flag the ads, train queries and anchors (rows,), by id, that have a novel ad's text."""
    tables = ["ads", TRAIN, *(f"anchors/{name}" for name in parent.anchor_sets)]
    flags = {table: np.zeros(parent.num_rows(table), dtype=bool) for table in tables}
    with engine(aside, dataset=parent) as connection:
        connection.register("novel", pa.table({"id": np.flatnonzero(novel)}))
        novel_texts = f"""CREATE TABLE novel_texts AS
            SELECT DISTINCT folded FROM ({texts_of("ads")}) JOIN novel USING (id)"""
        run(connection, "reading the novel ads' texts", novel_texts)
        for table, is_novel in flags.items():
            with_text = f"SELECT id FROM ({texts_of(table)}) SEMI JOIN novel_texts USING (folded)"
            for rows in stream(connection, with_text):
                is_novel[rows["id"]] = True
    return flags


def _draw_revealed_queries(
    parent: Dataset, novel: Booleans, left_out: Booleans, seed: int
) -> Int64s:
    """Draw one train query (ads,) of each novel ad; -1 if it has none, and for seen ads."""
    least = np.full(len(novel), np.iinfo(np.uint64).max)
    revealed = np.full(len(novel), -1)
    for rows in parent.batches(TRAIN):
        queries, ads = click_pairs(rows)
        chosen = novel[ads] & ~left_out[queries]
        queries = queries[chosen]
        ads = ads[chosen]
        draws = keyed_hash((seed, _ONE_SHOT), queries * len(novel) + ads)  # unique, as clicks are
        np.minimum.at(least, ads, draws)
        best = draws == least[ads]
        revealed[ads[best]] = queries[best]
    return revealed


def _write_queries(
    parent: Dataset,
    target: str,
    change: Callable[[pa.RecordBatch], pa.RecordBatch],
    writer: DatasetWriter,
) -> Kept:
    """Write what ``change``, applied to batches, leaves of a split's queries; returns which."""
    split = _MADE_FROM[target]
    table = f"queries/{split}"
    kept = np.zeros(parent.num_rows(table), dtype=bool)
    num_clicks = 0
    for batch in map(change, parent.batches(table)):
        kept[batch["query_id"]] = True
        num_clicks += len(batch["ad_ids"].flatten())
    if not num_clicks:
        which = "novel" if target == ZERO_SHOT else "seen"
        raise DatasetError(
            f"no {split} query of {parent.path} has a click on a {which} ad; choose another novel "
            f"fraction or seed"
        )
    write_kept(parent, table, {table: kept}, writer, change, f"queries/{target}")
    return {table: kept}


def _write_held_out(parent: Dataset, target: str, chosen: Booleans, writer: DatasetWriter) -> Kept:
    """Write a split's queries, and filter pairs, with the ``chosen`` ads (ads,); returns which."""

    def answered(rows: pa.RecordBatch) -> pa.RecordBatch:
        return _keep_clicks(rows, chosen[click_pairs(rows)[1]])

    kept = _write_queries(parent, target, answered, writer)
    filters = f"filters/{_MADE_FROM[target]}"
    _write_pairs(parent, filters, chosen, kept, writer, f"filters/{target}")
    return kept


def _write_pairs(
    parent: Dataset,
    table: str,
    chosen: Booleans,
    kept: Kept,
    writer: DatasetWriter,
    target: str | None = None,
) -> None:
    """Write the pairs of kept queries and ``chosen`` ads (ads,)."""

    def of_ads(pairs: pa.RecordBatch) -> pa.RecordBatch:
        return pairs.filter(pa.array(chosen[pairs["ad_id"]]))

    write_kept(parent, table, kept, writer, of_ads, target)


def _write_edges(
    parent: Dataset,
    anchor_set: str,
    side: str,
    kept: Kept,
    cut: Mapping[str, Booleans],
    writer: DatasetWriter,
) -> bool:
    """Write the edges of kept queries, or of ads, without those of rows, by table, that are cut."""
    nodes = cut[NODE_TABLES[side]]
    anchors = cut[f"anchors/{anchor_set}"]

    def uncut(edges: pa.RecordBatch) -> pa.RecordBatch:
        return edges.filter(pa.array(~(nodes[edges[0]] | anchors[edges["anchor_id"]])))

    return write_kept(parent, f"edges/{anchor_set}/{side}", kept, writer, uncut)


def _keep_clicks(rows: pa.RecordBatch, kept: Booleans) -> pa.RecordBatch:
    """Keep the flagged clicks, with their weights, and drop queries that lose all of theirs."""
    row_of_click = pc.list_parent_indices(rows["ad_ids"]).to_numpy()
    left = np.bincount(row_of_click[kept], minlength=len(rows))
    # a train query without clicks has lost none: it takes part in the graph by its edges
    had_none = pc.list_value_length(rows["ad_ids"]).to_numpy() == 0
    for column in {"ad_ids", "weights"} & set(rows.column_names):
        lists = to_lists(rows[column].flatten().filter(pa.array(kept)), left)
        rows = rows.set_column(rows.column_names.index(column), column, lists)
    return rows.filter(pa.array((left > 0) | had_none))
