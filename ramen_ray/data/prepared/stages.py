"""The stages between a dataset directory and its prepared arrays, as functions of Arrow tables.

All texts are converted to one form, and all edges to another. Rows are sorted by (table, key),
written as parts and joined. A train query's key is a hash of its id, so the sort shuffles the train
queries globally; all other rows keep the order of their ids. The caller decides where it runs.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, starmap
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ramen_ray.data.arrays import (
    Booleans,
    Float64s,
    Int64s,
    UInt64s,
    hash_texts,
    id_type,
    map_array,
    mix,
    publish,
    to_lists,
    write_pieces,
)
from ramen_ray.data.prepared.csr import accumulate
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import (
    JUDGED,
    NODE_TABLES,
    TRAIN,
    WEIGHTS,
    ZERO_SHOT,
    schema_of,
)

TEXTS_AT_ONCE = 1 << 16

Tokenize = Callable[[pa.StringArray], tuple[NDArray[np.int32], Int64s]]

ID_TABLES = ("filters/validation", "filters/test", f"filters/{ZERO_SHOT}", "novel_ads")
WHOLE_TABLES = (*ID_TABLES, *JUDGED)
"""Tables without texts or edges, small enough to read whole."""


def text_rows(table: str, rows: pa.Table, tokenize: Tokenize) -> pa.Table:
    """Tokenise a batch of a text table; columns table, key, id, tokens, ad_ids, weights."""
    ids = rows[0].to_numpy()
    token_ids, lengths = tokenize(rows["text"].combine_chunks())
    lists = {"tokens": to_lists(token_ids, lengths)} | {
        name: rows[name] if name in rows.column_names else pa.array([[]] * len(ids), kind)
        for name, kind in (("ad_ids", pa.list_(pa.int64())), ("weights", WEIGHTS.type))
    }
    # sorted, a part's rows may have more than 2**31 entries, which smaller lists cannot count
    large = {
        name: cells.cast(pa.large_list(cells.type.value_type)) for name, cells in lists.items()
    }
    return pa.table(
        {
            "table": [table] * len(ids),
            "key": _shuffle_keys(ids) if table == TRAIN else ids,
            "id": ids,
            **large,
        }
    )


def edge_rows(table: str, rows: pa.Table) -> pa.Table:
    """Convert a batch of an edge table to columns table, key, anchor_id, weight."""
    nodes = rows[0].to_numpy()
    return pa.table(
        {
            "table": [table] * len(nodes),
            "key": _shuffle_keys(nodes) if table.endswith("/query") else nodes,
            "anchor_id": rows["anchor_id"],
            "weight": rows["weight"],
        }
    )


def _shuffle_keys(query_ids: Int64s) -> Int64s:
    """Hash ids (n,) to unique int64 keys whose order is a fixed random order."""
    return (mix(query_ids) ^ np.uint64(1 << 63)).view(np.int64)


PART_SCHEMA = pa.schema(
    {"table": pa.string(), "first_key": pa.int64(), "first_anchor": pa.int64(), "file": pa.string()}
)
TablePart = dict[str, Any]
"""What :func:`write_parts` says of one part, as a dict."""


def write_parts(rows: pa.Table, folder: Path) -> pa.Table:
    """Write sorted rows as a part for each of their tables; returns descriptions of the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = [
        _write_part(table, rows.filter(pc.equal(rows["table"], table)).combine_chunks(), folder)
        for table in pc.unique(rows["table"]).to_pylist()
    ]
    return pa.Table.from_pylist(parts, schema=PART_SCHEMA)


def _write_part(table: str, rows: pa.Table, folder: Path) -> dict[str, Any]:
    is_text = "tokens" in rows.column_names
    edges = ("key", "anchor_id", "weight")
    arrays = _text_arrays(rows) if is_text else {name: rows[name].to_numpy() for name in edges}
    key = int(arrays["key"][0])
    anchor = 0 if is_text else int(arrays["anchor_id"][0])
    # a task that is repeated writes the same file again
    file = folder / f"{table.replace('/', '-')}_{key}_{anchor}.npz"
    with file.open("wb") as stream:
        np.savez(stream, **arrays)
    return {"table": table, "first_key": key, "first_anchor": anchor, "file": str(file)}


def _text_arrays(rows: pa.Table) -> dict[str, NDArray[Any]]:
    lists = (rows[name].combine_chunks() for name in ("tokens", "ad_ids", "weights"))
    tokens, ad_ids, weights = lists
    ads = ad_ids.flatten().to_numpy()
    degrees = pc.list_value_length(ad_ids).to_numpy()
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


def join_parts(
    parts: Iterable[TablePart], folder: Path, num_rows: dict[str, int], vocab_size: int
) -> None:
    """Join the parts of all tables, in any order, into the arrays of ``folder``.

    ``num_rows`` are those of the dataset's tables. What a lost machine left is written anew.
    """
    files: dict[str, list[str]] = {}
    for part in sorted(parts, key=itemgetter("table", "first_key", "first_anchor")):
        files.setdefault(part["table"], []).append(part["file"])
    texts = [table for table in files if not table.startswith("edges/")]
    occurs = np.zeros(vocab_size, dtype=bool)
    for table in texts:
        _join_texts(files[table], folder / "tokens" / table, occurs)
    write_pieces(folder / "query_ids.npy", np.int64, _pieces(files[TRAIN], "id"))
    np.save(folder / "occurring_tokens.npy", np.flatnonzero(occurs))
    for table in texts:
        if table.startswith("queries/"):
            _join_clicks(table, files[table], folder, num_rows["ads"])
    for side, nodes in NODE_TABLES.items():
        keys = np.concatenate([*_pieces(files[nodes], "key")])
        for anchors in (table for table in num_rows if table.startswith("anchors/")):
            table = f"edges/{anchors.removeprefix('anchors/')}/{side}"
            _join_edges(folder / table, files.get(table, []), keys, num_rows[anchors])
    publish(folder)


def _join_texts(files: list[str], folder: Path, occurs: Booleans) -> None:
    """Write a table's tokens, with texts' hashes; mark tokens in ``occurs`` (vocabulary,)."""
    folder.mkdir(parents=True, exist_ok=True)
    token_type = np.uint16 if len(occurs) <= 1 << 16 else np.int32
    write_pieces(folder / "token_ids.npy", token_type, _pieces(files, "tokens"))
    for tokens in _pieces(files, "tokens"):
        occurs[tokens] = True
    write_pieces(folder / "offsets.npy", np.int64, _running_sum(_pieces(files, "lengths")))
    write_pieces(folder / "hashes.npy", np.uint64, _hashes(files))


def _hashes(files: list[str]) -> Iterator[UInt64s]:
    """Yield the hashes of texts, of some at a time: more memory is needed than for their tokens."""
    for tokens, lengths in zip(_pieces(files, "tokens"), _pieces(files, "lengths"), strict=True):
        bounds = np.append(0, lengths.cumsum())
        for start in range(0, len(lengths), TEXTS_AT_ONCE):
            some = bounds[start : start + TEXTS_AT_ONCE + 1]
            yield hash_texts(tokens[some[0] : some[-1]], some)


def _join_clicks(table: str, files: list[str], folder: Path, num_ads: int) -> None:
    target = folder / "clicks" / table.removeprefix("queries/")
    target.mkdir(parents=True, exist_ok=True)
    write_pieces(target / "indptr.npy", np.int64, _running_sum(_pieces(files, "degrees")))
    write_pieces(target / "indices.npy", id_type(num_ads), _pieces(files, "ad_ids"))
    if table == TRAIN:  # only train clicks are drawn by weight
        _join_weights(target, files)
        counts = sum(np.bincount(ads, minlength=num_ads) for ads in _pieces(files, "ad_ids"))
        np.save(folder / "train_click_counts.npy", counts)
    else:
        pieces = zip(_pieces(files, "degrees"), _pieces(files, "weight"), strict=True)
        write_pieces(target / "traffic.npy", np.float64, starmap(_traffic, pieces))


def _traffic(degrees: Int64s, weights: Float64s) -> NDArray[Any]:
    """Return the sum of the weights of each query's clicks, or their number if none has one."""
    rows = np.repeat(np.arange(len(degrees)), degrees)
    return np.bincount(rows, weights, minlength=len(degrees)) if len(weights) else degrees


def _join_edges(target: Path, files: list[str], node_keys: Int64s, num_anchors: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    degrees = np.zeros(len(node_keys), dtype=np.int64)
    for keys in _pieces(files, "key"):  # the edges of one node may be in two parts
        nodes = np.searchsorted(node_keys, keys)
        degrees[nodes[0] : nodes[-1] + 1] += np.bincount(nodes - nodes[0])
    write_pieces(target / "indptr.npy", np.int64, _running_sum([degrees]))
    write_pieces(target / "indices.npy", id_type(num_anchors), _pieces(files, "anchor_id"))
    _join_weights(target, files)


def _join_weights(target: Path, files: list[str]) -> None:
    """Write the running sum of the weights, unless there are none or all are equal."""
    filled = (weights for weights in _pieces(files, "weight") if len(weights))
    if len({float(end) for weights in filled for end in (weights.min(), weights.max())}) < 2:
        return
    file = target / "cumulative_weights.npy"
    write_pieces(file, np.float64, chain([np.zeros(1)], _pieces(files, "weight")))
    accumulate(np.load(file, mmap_mode="r+"), map_array(target / "indptr.npy"))


def _running_sum(lengths: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """Yield 0, then for each piece where its rows end."""
    total = np.zeros(1, dtype=np.int64)
    yield total
    for piece in lengths:
        yield total + np.cumsum(piece, dtype=np.int64)
        total = total + piece.sum()


def _pieces(files: Iterable[str], name: str) -> Iterator[NDArray[Any]]:
    for file in files:
        with np.load(file) as arrays:
            yield arrays[name]


def write_whole_tables(folder: Path, dataset: Dataset) -> None:
    """Write tables of ids, also those that the dataset lacks, and the judgements that it has."""
    for table in ID_TABLES:
        columns = schema_of(table).names
        array = np.empty((0, len(columns)), dtype=np.int64)
        if dataset.has(table):
            rows = dataset.read(table)
            array = np.stack([rows[name].to_numpy() for name in columns], axis=1)
        file = folder / f"{table}.npy"
        file.parent.mkdir(exist_ok=True)
        np.save(file, array)
    for table in filter(dataset.has, JUDGED):
        file = folder / f"{table}.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(dataset.read(table), file)
