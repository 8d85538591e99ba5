"""A dataset for a linker: its ads are the anchors of another one, its clicks that one's edges."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from experiments.edges import edges_of_sets
from ramen_ray.data.arrays import keyed_hash
from ramen_ray.data.checks.rules import texts_of
from ramen_ray.data.checks.validation import check
from ramen_ray.data.engine import Connection, count, engine, run, stream
from ramen_ray.data.store.dataset import WHILE_READ, Dataset, DatasetError, new_dataset
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, SPLITS, TRAIN
from ramen_ray.naming import joined_name

HELD_OUT_SHARE = 0.1


def make_link_dataset(
    dataset: Path, output: Path, anchor_sets: Sequence[str], seed: int = 0
) -> Dataset:
    """Write the dataset that a linker is trained on: train queries, and the anchors they have.

    A tenth of the linked train queries becomes the validation split. The test split are the test
    queries with their own edges, if there are any, else another tenth of the train queries. The
    anchors of the sets follow each other, as in the bank of OAK. Pairs of a query with an anchor of
    its own text are filtered, unless a train query has such an edge. Raises a DatasetError if the
    dataset is not usable, has no such set or too few queries with edges, or ``output`` exists.
    """
    parent = Dataset(dataset)
    # the fingerprint is taken before all reading
    origin = {"parent_fingerprint": parent.fingerprint, "anchor_sets": [*anchor_sets], "seed": seed}
    check(parent)
    for name in anchor_sets:
        if not parent.has(f"edges/{name}/query"):
            raise DatasetError(
                f"{parent.path} has no edges of train queries to an anchor set {name!r}; its sets "
                f"are {', '.join(parent.anchor_sets) or 'none'}"
            )
    name = joined_name(parent.name, "links")
    kept = {key: parent.metadata[key] for key in ("source", "licence") if key in parent.metadata}
    with (
        new_dataset(output, name=name, links_of=origin, **kept) as writer,
        parent.unchanged(WHILE_READ),
        engine(writer.folder, dataset=parent) as connection,
    ):
        _create_tables(connection, parent, anchor_sets, seed)
        writer.write("ads", stream(connection, "SELECT ad_id, text FROM bank ORDER BY ad_id"))
        links = "SELECT folded, unnest(ad_ids) AS ad_id FROM linked WHERE split = 'train'"
        of_own_text = f"SELECT count(*) FROM ({links}) JOIN bank USING (ad_id, folded)"
        links_own_text = count(connection, of_own_text)
        for split in SPLITS:
            queries = f"FROM linked WHERE split = '{split}' ORDER BY query_id"
            if not writer.write(f"queries/{split}", stream(connection, queries)):
                what = f"too few queries with edges for a {split} split"
                raise DatasetError(f"{parent.path} has {what}")
            if split != "train" and not links_own_text:
                pairs = f"""SELECT query_id, ad_id FROM linked JOIN bank USING (folded)
                    WHERE split = '{split}' ORDER BY query_id, ad_id"""
                writer.write(f"filters/{split}", stream(connection, pairs))
    return Dataset(output)


def _create_tables(
    connection: Connection, parent: Dataset, anchor_sets: Sequence[str], seed: int
) -> None:
    """Create ``bank`` (ad_id, text, folded) and ``linked`` (split, query_id, text, ad_ids ...)."""
    first = 0
    texts = []
    for table in (f"anchors/{name}" for name in anchor_sets):
        texts.append(f"SELECT id + {first} AS ad_id, text, folded FROM ({texts_of(table)})")
        first += parent.num_rows(table)
    connection.execute(f"CREATE TABLE bank AS {' UNION ALL '.join(texts)}")
    side = HELD_OUT_SIDES["test"]
    has_own = all(parent.has(f"edges/{name}/{side}") for name in anchor_sets)
    chance = keyed_hash((seed,), np.arange(parent.num_rows(TRAIN))) / 2.0**64
    chances = {"id": np.arange(len(chance)), "chance": chance}
    connection.register("chances", pa.table(chances))
    parts = [
        f"""SELECT CASE WHEN chance < {HELD_OUT_SHARE} THEN 'validation'
            WHEN {not has_own} AND chance < {2 * HELD_OUT_SHARE} THEN 'test' ELSE 'train' END
            AS split, queries.*, node, anchor
        FROM ({edges_of_sets(parent, anchor_sets, "query")})
        JOIN chances ON id = node JOIN ({texts_of(TRAIN)}) AS queries USING (id)"""
    ]
    if has_own:
        parts.append(
            f"""SELECT 'test', queries.*, node, anchor
            FROM ({edges_of_sets(parent, anchor_sets, side)})
            JOIN ({texts_of("queries/test")}) AS queries ON id = node"""
        )
    linked = f"""CREATE TABLE linked AS
        SELECT split, row_number() OVER (PARTITION BY split ORDER BY id) - 1 AS query_id,
            any_value(text) AS text, any_value(folded) AS folded,
            list(anchor ORDER BY anchor) AS ad_ids
        FROM ({" UNION ALL ".join(parts)}) GROUP BY split, id"""
    run(connection, "collecting the links", linked)
