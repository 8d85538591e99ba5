"""Last stage: write the dataset directory's parts."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ramen_ray.data.arrays import Int64s
from ramen_ray.data.importers.tables.given import FILTERS
from ramen_ray.data.importers.tables.numbering import SUMMED, Numbering
from ramen_ray.data.importers.tables.planning import TRAIN, Plan
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.importers.tables.staging import part_file, read_part, read_parts
from ramen_ray.data.prepared.hashing import HashIndex
from ramen_ray.data.store.dataset import DatasetWriter, conform
from ramen_ray.data.store.schemas import SPLITS, schema_of


def write_ads(folder: Path, part: int, writer: DatasetWriter) -> None:
    """Write the ads of a staged part."""
    numbers = Numbering.open(folder, "ads").part_rows(part)
    ids = np.where(numbers >= 0, Plan.open(folder).ad_ids[numbers], -1)
    nodes = read_part(folder, "ads", part).filter(pa.array(ids >= 0))
    _write(writer, "ads", part, _named(nodes, "ad_id", ids[ids >= 0]))


def write_queries(folder: Path, part: int, writer: DatasetWriter, tables: UserTables) -> None:
    """Write the queries of a staged part, with their ads, into the splits."""
    plan = Plan.open(folder)
    numbers = Numbering.open(folder, "queries").part_rows(part)
    nodes = read_part(folder, "queries", part).filter(pa.array(numbers >= 0))
    numbers = numbers[numbers >= 0]
    if part_file(folder, "summed", part).exists():
        clicks = read_part(folder, "summed", part)
    else:  # none of its queries has clicks
        clicks = SUMMED.empty_table()
    query, ad = clicks["query"].to_numpy(), plan.ad_ids[clicks["ad"].to_numpy()]
    counts = (clicks["period"].to_numpy() == plan.query_periods[query]) & (ad >= 0)
    query, ad, weight = query[counts], ad[counts], clicks["weight"].filter(pa.array(counts))
    splits = plan.query_splits[numbers]
    for place, split in enumerate(SPLITS):
        chosen = splits == place
        rows = _named(nodes.filter(pa.array(chosen)), "query_id", plan.query_ids[numbers[chosen]])
        mine = plan.query_splits[query] == place
        starts = np.append(np.searchsorted(query[mine], numbers[chosen]), mine.sum())
        offsets = pa.array(starts.astype(np.int32))
        ad_ids = pa.ListArray.from_arrays(offsets, pa.array(ad[mine]))
        rows = rows.append_column("ad_ids", ad_ids)
        if tables.columns.clicks_weight:
            weights = weight.filter(pa.array(mine)).combine_chunks()
            rows = rows.append_column("weights", pa.ListArray.from_arrays(offsets, weights))
        _write(writer, f"queries/{split}", part, rows)


def write_filters(folder: Path, writer: DatasetWriter, tables: UserTables) -> dict[str, int]:
    """Write the filter pairs of validation and test queries.

    Returns:
        how many pairs each split has, and how many are ``unused``: those of other queries or ads.
    """
    plan, ads = Plan.open(folder), Numbering.open(folder, "ads")
    pairs = [FILTERS.empty_table(), *read_parts(folder, "filters")]
    query, ad = (pa.concat_tables(pairs)[name].to_numpy() for name in FILTERS.names)
    num_given = len(query)
    if tables.drop_own_text:
        held_out = np.flatnonzero(plan.query_splits > TRAIN)
        texts = Numbering.open(folder, "queries").folded_hashes[held_out]
        position, own = HashIndex.from_hashes(np.asarray(ads.folded_hashes)).all(texts)
        query, ad = np.append(query, held_out[position]), np.append(ad, own)
    split, query_ids, ad_ids = plan.query_splits[query], plan.query_ids[query], plan.ad_ids[ad]
    used = (split > TRAIN) & (ad_ids >= 0)
    counts = {"unused": int((~used[:num_given]).sum())}
    for place, name in enumerate(SPLITS[1:], start=1):
        chosen = used & (split == place)
        rows = np.unique(np.stack([query_ids[chosen], ad_ids[chosen]], axis=1), axis=0)
        counts[name] = len(rows)
        if len(rows):
            writer.write(
                f"filters/{name}", pa.table(list(rows.T), schema=schema_of(f"filters/{name}"))
            )
    return counts


def _named(nodes: pa.Table, id_column: str, ids: Int64s) -> pa.Table:
    """Give nodes their ids and keep their texts, and the user's own ids if there are any."""
    rows = pa.table({id_column: ids, "text": nodes["text"]})
    if nodes["source_id"].null_count == len(nodes):
        return rows
    return rows.append_column("source_id", nodes["source_id"])


def _write(writer: DatasetWriter, table: str, part: int, rows: pa.Table) -> None:
    if len(rows):
        pq.write_table(conform(table, rows), writer.part(table, part), compression="zstd")
