"""The stages between a dataset directory and its prepared arrays, as functions of Arrow tables.

All texts are converted to one form, and all edges to another. Rows are sorted by (table, key),
written as parts and joined. A train query's key is a hash of its id, so the sort shuffles the train
queries globally; all other rows keep the order of their ids. The caller decides where it runs.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ramen_ray.data.prepared.csr import accumulate, id_type
from ramen_ray.data.prepared.hashing import mix
from ramen_ray.data.prepared.text_hashes import write_hashes
from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.mapped_files import map_new_array, publish
from ramen_ray.data.store.schemas import HELD_OUT_SIDES, WEIGHTS, ZERO_SHOT, schema_of

Tokenize = Callable[[pa.StringArray], tuple[NDArray[np.int32], NDArray[np.int64]]]

SHUFFLED = "queries/train"
ID_TABLES = ("filters/validation", "filters/test", f"filters/{ZERO_SHOT}", "novel_ads")
"""Tables without texts or edges, small enough to read whole."""

_SIGN = np.uint64(1 << 63)


def shuffle_keys(query_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Hash ids (n,) to unique int64 keys whose order is a fixed random order."""
    return (mix(query_ids) ^ _SIGN).view(np.int64)


def text_rows(table: str, rows: pa.Table, tokenize: Tokenize) -> pa.Table:
    """Tokenise a batch of a text table; columns table, key, id, tokens, ad_ids, weights."""
    ids = rows[0].to_numpy()
    token_ids, lengths = tokenize(rows["text"].combine_chunks())
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    lists = {
        name: rows[name] if name in rows.column_names else pa.array([[]] * len(ids), kind)
        for name, kind in (("ad_ids", pa.list_(pa.int64())), ("weights", WEIGHTS.type))
    }
    return pa.table(
        {
            "table": [table] * len(ids),
            "key": shuffle_keys(ids) if table == SHUFFLED else ids,
            "id": ids,
            "tokens": pa.ListArray.from_arrays(offsets, pa.array(token_ids)),
            **lists,
        }
    )


def edge_rows(table: str, rows: pa.Table) -> pa.Table:
    """Convert a batch of an edge table to columns table, key, anchor_id, weight."""
    nodes = rows[0].to_numpy()
    return pa.table(
        {
            "table": [table] * len(nodes),
            "key": shuffle_keys(nodes) if table.endswith("/query") else nodes,
            "anchor_id": rows["anchor_id"],
            "weight": rows["weight"],
        }
    )


def write_parts(rows: pa.Table, folder: Path) -> pa.Table:
    """Write sorted rows as one part for each of their tables; returns descriptions of the parts.

    A part is named after its first row, so a repeated task writes the same file again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        _write_part(table, rows.filter(pc.equal(rows["table"], table)).combine_chunks(), folder)
        for table in pc.unique(rows["table"]).to_pylist()
    ]
    return pa.Table.from_pylist(parts, schema=PART_SCHEMA)


PART_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("first_key", pa.int64()),
        ("first_anchor", pa.int64()),
        ("num_rows", pa.int64()),
        ("num_tokens", pa.int64()),
        ("num_clicks", pa.int64()),
        ("weight_range", pa.list_(pa.float64())),
        ("file", pa.string()),
    ]
)


def _write_part(table: str, rows: pa.Table, folder: Path) -> dict[str, Any]:
    is_text = "tokens" in rows.column_names
    arrays = _text_arrays(rows) if is_text else _edge_arrays(rows)
    first_key = int(arrays["key"][0])
    first_anchor = 0 if is_text else int(arrays["anchor_id"][0])
    file = folder / f"{table.replace('/', '-')}_{first_key}_{first_anchor}.npz"
    with file.open("wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
    weights = arrays["weight"]
    return {
        "table": table,
        "first_key": first_key,
        "first_anchor": first_anchor,
        "num_rows": len(arrays["key"]),
        "num_tokens": len(arrays.get("tokens", ())),
        "num_clicks": len(arrays.get("ad_ids", ())),
        "weight_range": [float(weights.min()), float(weights.max())] if len(weights) else [],
        "file": str(file),
    }


def _text_arrays(rows: pa.Table) -> dict[str, NDArray[Any]]:
    tokens, ad_ids, weights = (
        rows[name].combine_chunks() for name in ("tokens", "ad_ids", "weights")
    )
    ads, degrees = ad_ids.flatten().to_numpy(), pc.list_value_length(ad_ids).to_numpy()
    weight = weights.flatten().to_numpy()
    order = np.lexsort((ads, np.repeat(np.arange(len(degrees)), degrees)))
    return {
        "key": rows["key"].to_numpy(),
        "id": rows["id"].to_numpy(),
        "tokens": tokens.flatten().to_numpy(),
        "lengths": pc.list_value_length(tokens).to_numpy(),
        "ad_ids": ads[order],
        "degrees": degrees,
        "weight": weight[order] if len(weight) else weight,
    }


def _edge_arrays(rows: pa.Table) -> dict[str, NDArray[Any]]:
    return {name: rows[name].to_numpy() for name in ("key", "anchor_id", "weight")}


def join_parts(parts: pa.Table, folder: Path, num_rows: dict[str, int], vocab_size: int) -> None:
    """Join the parts of all tables into a :class:`~ramen_ray.data.prepared.folder.Prepared`.

    If a lost machine has left some of it, that is written anew.

    Args:
        parts: descriptions that :func:`write_parts` returned, in any order.
        folder: where to write.
        num_rows: row counts of the dataset's tables.
        vocab_size: number of token ids.

    Raises:
        DatasetError: an id or an edge occurs twice, or a split has no clicks.
    """
    by_table = {
        table: parts.filter(pc.equal(parts["table"], table)).sort_by(
            [("first_key", "ascending"), ("first_anchor", "ascending")]
        )
        for table in pc.unique(parts["table"]).to_pylist()
    }
    texts = [table for table in by_table if not table.startswith("edges/")]
    occurs = np.zeros(vocab_size, dtype=bool)
    keys = {table: _join_texts(table, by_table[table], folder, occurs) for table in texts}
    np.save(folder / "occurring_tokens.npy", np.flatnonzero(occurs))
    write_hashes([folder / "tokens" / table for table in texts])
    for table in texts:
        if table.startswith("queries/"):
            _join_clicks(table, by_table[table], folder, num_rows)
    held_out = {side: f"queries/{split}" for split, side in HELD_OUT_SIDES.items()}
    for anchors in (table for table in num_rows if table.startswith("anchors/")):
        for side, node_table in {"query": SHUFFLED, "ad": "ads", **held_out}.items():
            table = f"edges/{anchors.removeprefix('anchors/')}/{side}"
            edges = by_table.get(table, parts.slice(0, 0))
            if len(edges) or side not in held_out:
                _join_edges(table, edges, folder, keys[node_table], id_type(num_rows[anchors]))
    publish(folder)


def _join_texts(
    table: str, parts: pa.Table, folder: Path, occurs: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Write a text table's tokens, and mark them in ``occurs``; returns its keys (rows,) in order.

    Tokens are uint16 if the vocabulary (tokens,) of ``occurs`` permits it, or else int32.
    """
    token_type = np.uint16 if len(occurs) <= 1 << 16 else np.int32
    target = folder / "tokens" / table
    target.mkdir(parents=True, exist_ok=True)
    num_texts, num_tokens = (pc.sum(parts[name]).as_py() for name in ("num_rows", "num_tokens"))
    token_ids = map_new_array(target / "token_ids.npy", token_type, (num_tokens,))
    offsets = map_new_array(target / "offsets.npy", np.int64, (num_texts + 1,))
    ids = np.empty(num_texts, dtype=np.int64)
    keys = np.empty(num_texts, dtype=np.int64)
    row = token = 0
    for part in _open(parts):
        rows = slice(row, row + len(part["key"]))
        lengths = part["lengths"]
        starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        token_ids[token : token + starts[-1]] = part["tokens"]
        occurs[part["tokens"]] = True
        offsets[row + 1 : rows.stop + 1] = token + starts[1:]
        keys[rows] = part["key"]
        ids[rows] = part["id"]
        row, token = rows.stop, token + int(starts[-1])
    repeated = ids[1:][keys[1:] == keys[:-1]]
    if len(repeated):
        raise DatasetError(f"{table}: id {repeated[0]} occurs more than once")
    if table == SHUFFLED:
        np.save(folder / "query_ids.npy", ids)
    return keys


def _join_clicks(table: str, parts: pa.Table, folder: Path, num_rows: dict[str, int]) -> None:
    target = folder / "clicks" / table.removeprefix("queries/")
    target.mkdir(parents=True, exist_ok=True)
    num_clicks = pc.sum(parts["num_clicks"]).as_py()
    if not num_clicks:
        raise DatasetError(f"{table}: no query has a click")
    indptr = map_new_array(target / "indptr.npy", np.int64, (num_rows[table] + 1,))
    indices = map_new_array(target / "indices.npy", id_type(num_rows["ads"]), (num_clicks,))
    counts = np.zeros(num_rows["ads"], dtype=np.int64)
    is_weighted = table == SHUFFLED  # only train clicks are drawn by weight
    weights = _new_weights(target, parts, num_clicks) if is_weighted else None
    traffic: list[NDArray[np.float64]] = []
    row = entry = 0
    for part in _open(parts):
        ends = entry + np.cumsum(part["degrees"], dtype=np.int64)
        ads = part["ad_ids"]
        traffic.append(_traffic(part))
        indptr[row + 1 : row + 1 + len(ends)] = ends
        indices[entry : entry + len(ads)] = ads
        counts += np.bincount(ads, minlength=len(counts))
        if weights is not None:
            weights[entry + 1 : entry + 1 + len(ads)] = part["weight"]
        row, entry = row + len(ends), entry + len(ads)
    if weights is not None:
        accumulate(weights, indptr)
    if table == SHUFFLED:
        np.save(folder / "train_click_counts.npy", counts)
    else:
        np.save(target / "traffic.npy", np.concatenate(traffic))


def _traffic(part: dict[str, NDArray[Any]]) -> NDArray[np.float64]:
    """Return the sum of the weights of each query's clicks, or their number if none has one."""
    degrees, weights = part["degrees"], part["weight"]
    if not len(weights):
        return degrees.astype(np.float64)
    rows = np.repeat(np.arange(len(degrees)), degrees)
    return np.bincount(rows, weights, minlength=len(degrees)).astype(np.float64)


def _join_edges(
    table: str,
    parts: pa.Table,
    folder: Path,
    node_keys: NDArray[np.int64],
    anchor_type: type[np.generic],
) -> None:
    target = folder / table
    target.mkdir(parents=True, exist_ok=True)
    num_edges = pc.sum(parts["num_rows"]).as_py() or 0
    indptr = map_new_array(target / "indptr.npy", np.int64, (len(node_keys) + 1,))
    if not num_edges:  # a side without edges; an empty file cannot be mapped
        np.save(target / "indices.npy", np.empty(0, dtype=anchor_type))
        return
    indices = map_new_array(target / "indices.npy", anchor_type, (num_edges,))
    weights = _new_weights(target, parts, num_edges)
    entry, last = 0, (-1, -1)
    for part in _open(parts):
        nodes = np.searchsorted(node_keys, part["key"])
        anchors, stop = part["anchor_id"], entry + len(nodes)
        twice = (np.diff(nodes, prepend=last[0]) == 0) & (np.diff(anchors, prepend=last[1]) == 0)
        if twice.any():
            raise DatasetError(f"{table}: one node has two edges to anchor_id {anchors[twice][0]}")
        last = int(nodes[-1]), int(anchors[-1])
        span = slice(nodes[0] + 1, nodes[-1] + 2)
        indptr[span] += np.bincount(nodes - nodes[0])
        indices[entry:stop] = anchors
        if weights is not None:
            weights[entry + 1 : stop + 1] = part["weight"]
        entry = stop
    np.cumsum(indptr, out=indptr)
    if weights is not None:
        accumulate(weights, indptr)


def _new_weights(target: Path, parts: pa.Table, num_entries: int) -> NDArray[np.float64] | None:
    """Map a new file for :func:`accumulate`; None if there are no weights or all are equal."""
    range_of_all = pc.min_max(pc.list_flatten(parts["weight_range"]))
    if range_of_all["min"] == range_of_all["max"]:
        return None
    return map_new_array(target / "cumulative_weights.npy", np.float64, (num_entries + 1,))


def write_ids(folder: Path, table: str, rows: pa.Table | None) -> None:
    """Write a table of ids, or one that the dataset does not have, as (rows, columns) int64."""
    columns = schema_of(table).names
    empty = np.empty((0, len(columns)), dtype=np.int64)
    array = empty if rows is None else np.stack([rows[name].to_numpy() for name in columns], axis=1)
    file = folder / f"{table}.npy"
    file.parent.mkdir(exist_ok=True)
    np.save(file, array)


def _open(parts: pa.Table) -> Iterator[dict[str, NDArray[Any]]]:
    for file in parts["file"].to_pylist():
        with np.load(file) as arrays:
            yield dict(arrays)
