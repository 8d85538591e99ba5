"""IRENE's novel splits: some ads appear only after training, in the test."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from ramen_ray.data.arrays import Int64s, keyed_hash
from ramen_ray.data.engine import Connection, add_function, count, engine, name_literal, run, stream
from ramen_ray.data.splits.kept import lowest, new_dataset_from, write_kept
from ramen_ray.data.store.dataset import Dataset, DatasetError, DatasetWriter
from ramen_ray.data.store.schemas import NODE_TABLES, TRAIN, ZERO_SHOT
from ramen_ray.data.tables.clicks.splits import write_filled

_NOVEL, _ONE_SHOT = range(2)  # keys of the two draws
_MADE_FROM = {"train": "train", "validation": "validation", ZERO_SHOT: "test"}
"""By split that is written, the parent's split that it has queries of."""
LISTS = ("ad_ids", "weights")
IS_NOVEL = "ad_id IN (FROM novel)"
IS_VISIBLE = "(ad_id NOT IN (FROM hidden) OR (query_id, ad_id) IN (FROM revealed))"
HAS_NOVEL_TEXT = "folded IN (FROM novel_texts)"


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
    with (
        new_dataset_from(parent, output, kind, "novel_split", asdict(settings)) as writer,
        engine(writer.folder, dataset=parent) as connection,
    ):
        novel = _draw_novel_ads(parent, settings)
        _name_what_is_novel(connection, novel, parent.num_rows("ads"), settings)
        for table in ("ads", "queries/test", "filters/test", "judged/test"):
            write_kept(parent, table, {}, writer)
        writer.write("novel_ads", pa.table({"ad_id": novel}))
        split = _Split(parent, connection, writer)
        split.write_queries("train", IS_VISIBLE, "query_id NOT IN (FROM left_out)")
        split.write_queries("validation", f"NOT {IS_NOVEL}")
        split.write_queries(ZERO_SHOT, IS_NOVEL)
        split.write_pairs("filters", "validation", f"NOT {IS_NOVEL}")
        split.write_pairs("filters", ZERO_SHOT, IS_NOVEL)
        for name in ("train", "validation"):
            split.write_pairs("judged", name, f"NOT {IS_NOVEL}")
        cut = "false" if settings.keep_ad_edges else HAS_NOVEL_TEXT
        for name in parent.anchor_sets:
            written = [split.write_edges(name, side, cut) for side in NODE_TABLES]
            if any(written):
                write_kept(parent, f"anchors/{name}", {}, writer)
    return Dataset(output)


def _draw_novel_ads(parent: Dataset, settings: NovelSettings) -> Int64s:
    """Return the ads (novel ads,) with the lowest draws."""
    num_ads = parent.num_rows("ads")
    num_novel = settings.novel_fraction * num_ads
    if not 0.5 < num_novel < num_ads - 0.5:  # nor if it is not a number
        raise DatasetError(
            f"a novel fraction of {settings.novel_fraction} makes none or all of the {num_ads} ads"
            f" of {parent.path} novel; choose another, between 0 and 1"
        )
    draws = keyed_hash((settings.seed, _NOVEL), np.arange(num_ads))
    return np.flatnonzero(lowest(draws, round(num_novel)))


def _name_what_is_novel(
    connection: Connection, novel: Int64s, num_ads: int, settings: NovelSettings
) -> None:
    """Create ``novel`` (ad_id), ``novel_texts`` (folded), and what training sees of them.

    ``left_out`` (query_id) are train queries; clicks on ads that are ``hidden`` (ad_id) are left
    out, but for those that are ``revealed`` (query_id, ad_id): of each novel ad that has train
    clicks the one with the lowest draw.
    """
    draws = partial(keyed_hash, (settings.seed, _ONE_SHOT))
    add_function(connection, "draw", draws, "BIGINT", "UBIGINT")
    connection.register("drawn", pa.table({"ad_id": novel}))
    train = name_literal(TRAIN)
    is_out = HAS_NOVEL_TEXT if settings.unseen_texts else "false"
    made = {
        "novel": "FROM drawn",
        "novel_texts": f"SELECT DISTINCT folded FROM ads WHERE {IS_NOVEL}",
        "left_out": f"SELECT query_id FROM {train} WHERE {is_out}",
        "hidden": f"SELECT ad_id FROM ads WHERE {IS_NOVEL} OR {is_out}",
        "revealed": f"""SELECT arg_min(query_id, draw(query_id * {num_ads} + ad_id)), ad_id
            FROM (SELECT query_id, unnest(ad_ids) AS ad_id FROM {train})
            WHERE {settings.one_shot} AND {IS_NOVEL} AND query_id NOT IN (FROM left_out)
            GROUP BY ad_id""",
    }
    for table, rows in made.items():
        run(connection, "looking for what is novel", f"CREATE TABLE {table} AS {rows}")


@dataclass(frozen=True)
class _Split:
    """Writes tables of a ``parent`` with what is chosen of them, by SQL over its rows."""

    parent: Dataset
    connection: Connection
    writer: DatasetWriter

    def write_queries(self, target: str, clicks: str, queries: str = "true") -> None:
        """Write the chosen ``queries`` with the chosen ``clicks``, without those that lose all.

        ``kept/TARGET`` has them, each with its ``old_id``. Raises a DatasetError if none has a
        click.
        """
        split = _MADE_FROM[target]
        table = f"queries/{split}"
        lists = [name for name in self.parent.schema(table).names if name in LISTS]
        entries = ", ".join(f"unnest({name}) AS {name}" for name in lists)
        joined = ", ".join(f"list({name} ORDER BY place) AS {name}" for name in lists)
        replaced = ", ".join(f"coalesce(clicked.{name}, chosen.{name}) AS {name}" for name in lists)
        kept = name_literal(f"kept/{target}")
        create = f"""CREATE TABLE {kept} AS
            WITH
                chosen AS (SELECT * FROM {name_literal(table)} WHERE {queries}),
                entries AS (
                    SELECT query_id, unnest(ad_ids) AS ad_id,
                        generate_subscripts(ad_ids, 1) AS place, {entries} FROM chosen),
                clicked AS (
                    SELECT query_id, {joined} FROM entries WHERE {clicks} GROUP BY query_id)
            -- a train query without clicks has lost none: it takes part in the graph by its edges
            SELECT chosen.query_id AS old_id, chosen.* REPLACE (
                row_number() OVER (ORDER BY chosen.query_id) - 1 AS query_id, {replaced})
            FROM chosen LEFT JOIN clicked ON clicked.query_id = chosen.query_id
            WHERE clicked.query_id IS NOT NULL OR len(chosen.ad_ids) = 0"""
        run(self.connection, f"choosing {target} queries", create)
        if not count(self.connection, f"SELECT sum(len(ad_ids)) FROM {kept}"):
            which = "novel" if target == ZERO_SHOT else "seen"
            raise DatasetError(
                f"no {split} query of {self.parent.path} has a click on a {which} ad; choose "
                f"another novel fraction or seed"
            )
        rows = stream(self.connection, f"FROM {kept} ORDER BY query_id")
        self.writer.write(f"queries/{target}", rows)

    def write_pairs(self, folder: str, target: str, chosen: str) -> None:
        """Write the ``chosen`` rows of kept queries of ``folder``/split, if there are any."""
        table = f"{folder}/{_MADE_FROM[target]}"
        if self.parent.has(table):
            rows = f"FROM {name_literal(table)} WHERE {chosen}"
            renumbered = _renumbered(rows, target)
            write_filled(self.connection, self.writer, f"{folder}/{target}", renumbered)

    def write_edges(self, anchor_set: str, side: str, cut: str) -> bool:
        """Write edges whose ends are not ``cut``, of kept queries; says whether there are any."""
        table = f"edges/{anchor_set}/{side}"
        if not self.parent.has(table):
            return False
        rows = f"FROM {name_literal(table)}"
        ends = {f"{side}_id": NODE_TABLES[side], "anchor_id": f"anchors/{anchor_set}"}
        for end, nodes in ends.items():
            gone = f"SELECT {end} FROM {name_literal(nodes)} WHERE {cut}"
            rows = f"FROM ({rows}) WHERE {end} NOT IN ({gone})"
        rows = _renumbered(rows, "train") if side == "query" else rows
        return write_filled(self.connection, self.writer, table, rows) > 0


def _renumbered(rows: str, target: str) -> str:
    """Return the SQL of rows of kept queries, with their new ids."""
    return f"""SELECT given.* REPLACE (kept.query_id AS query_id)
        FROM ({rows}) AS given
        JOIN {name_literal(f"kept/{target}")} AS kept ON kept.old_id = given.query_id"""
