"""The tables of a dataset's description."""

from collections.abc import Mapping
from textwrap import shorten

import numpy as np

from ramen_ray.data.describe.counts import CLICKS, Degrees
from ramen_ray.data.engine import Connection, name_literal
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import TRAIN
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.method.model.texts import measure_tokens
from ramen_ray.reports.report_tables import ReportTable

SEED = 0
NUM_HUBS = 5
NUM_SAMPLES = 3
TEXTS_PER_TABLE = 100_000
UNCUT = 2**31
SHOWN_CHARACTERS = 120
SHOWN_TEXTS = 10
NODES = {"query": "train queries", "ad": "ads"}
PER_CENT = {"median": 50, "p90": 90, "p99": 99, "max": 100}

DegreesBySide = Mapping[tuple[str, str], Degrees]


def splits(connection: Connection, dataset: Dataset, numbers: Mapping[str, float]) -> ReportTable:
    """Lay out the sizes of the splits."""
    counted = {}
    for split in dataset.splits:
        table = f"queries/{split}"
        weight = "sum(list_sum(weights))" if "weights" in dataset.schema(table).names else "NULL"
        sql = f"SELECT count(*), sum(len(ad_ids)), {weight} FROM {name_literal(table)}"
        (counted[split],) = connection.sql(sql).fetchall()
    columns = ["split", "queries", "clicks", "clicks per query"]
    has_weights = any(weight is not None for _, _, weight in counted.values())
    if has_weights:
        columns.append("click weight")
    kinds = []
    if any(name.endswith("_judgements") for name in numbers):
        kinds = ["judgements", "low_judgements"]
    columns += [kind.replace("_", " ") for kind in kinds]
    rows = []
    for split, (queries, clicks, weight) in counted.items():
        row = [split, count(queries), count(clicks), average(clicks / queries)]
        if has_weights:
            row.append("" if weight is None else average(weight))
        row += [count(numbers.get(f"num_{split}_{kind}", 0)) for kind in kinds]
        rows.append(row)
    return ReportTable("Splits", columns, rows)


def shares(connection: Connection, degrees: DegreesBySide) -> ReportTable:
    """Count nodes without clicks or edges, and test clicks on rare ads."""
    without = "ads without a train click"
    with_one = "ads with exactly one train click"
    queries = degrees[CLICKS, "query"]
    ads = degrees[CLICKS, "ad"]
    tests = f"SELECT unnest(ad_ids) AS node FROM {name_literal('queries/test')}"
    rare = f"""SELECT count(*) FILTER (WHERE degree = 0), count(*) FILTER (WHERE degree = 1),
            count(*)
        FROM ({tests}) JOIN degrees USING (node) WHERE graph = '{CLICKS}' AND side = 'ad'"""
    ((on_unclicked, on_once_clicked, num_tests),) = connection.sql(rare).fetchall()
    rows = [
        _share("train queries without a click", queries.without, queries.nodes),
        _share(without, ads.without, ads.nodes),
        _share(with_one, ads.with_one, ads.nodes),
        _share(f"test clicks on {without}", on_unclicked, num_tests),
        _share(f"test clicks on {with_one}", on_once_clicked, num_tests),
    ]
    unlinked = f"""SELECT side, count(*) FILTER (WHERE total = 0), count(*) FROM (
            SELECT side, node, sum(degree) AS total FROM degrees
            WHERE graph <> '{CLICKS}' AND side <> 'anchor' GROUP BY side, node)
        GROUP BY side HAVING max(total) > 0 ORDER BY side DESC"""
    for side, part, whole in connection.sql(unlinked).fetchall():
        rows.append(_share(f"{NODES[side]} without any edge", part, whole))
    for (name, side), of_set in degrees.items():
        if name != CLICKS and of_set.edges:  # a graph need not link both sides
            what = f"{name} anchors without an edge"
            if side != "anchor":
                what = f"{NODES[side]} without an edge to {name}"
            rows.append(_share(what, of_set.without, of_set.nodes))
    return ReportTable(
        "Without clicks, without edges",
        ("", "number", "of", "share"),
        rows,
        note="Batches are drawn from clicks: what has no train click is learnt by its edges only.",
    )


def _share(what: str, part: int, whole: int) -> list[str]:
    return [what, count(part), count(whole), f"{part / max(whole, 1):.1%}"]


def distributions(degrees: DegreesBySide) -> ReportTable:
    """Lay out how many nodes have how many train clicks, and edges of each anchor set."""
    rows = []
    for (graph, side), counted in degrees.items():
        mean = average(counted.edges / counted.nodes)
        numbers = map(count, counted.quantiles)
        rows.append([graph or "clicks", side, count(counted.nodes), mean, *numbers])
    return ReportTable(
        "Distributions",
        ("of", "per", "nodes", "mean", *PER_CENT),
        rows,
        text_columns=2,
        note="Clicks are train clicks; an anchor's edges are those to queries and to ads. Means, "
        "as in Table 9 of the RAMEN paper, are over all nodes, also without clicks or edges.",
    )


def hubs(connection: Connection, dataset: Dataset) -> ReportTable:
    """List the anchors of each set with most edges, most first."""
    rows = []
    for name in dataset.anchor_sets:
        tables = [(side, f"edges/{name}/{side}") for side in NODES]
        ends = " UNION ALL ".join(
            f"SELECT anchor_id, '{side}' AS side FROM {name_literal(table)}"
            for side, table in tables
            if dataset.has(table)
        )
        most = f"""SELECT text, count(*) FILTER (WHERE side = 'query'),
                count(*) FILTER (WHERE side = 'ad'), count(*) / sum(count(*)) OVER ()
            FROM ({ends}) JOIN {name_literal(f"anchors/{name}")} USING (anchor_id)
            GROUP BY anchor_id, text ORDER BY count(*) DESC, anchor_id LIMIT {NUM_HUBS}"""
        for text, queries, ads, share in connection.sql(most).fetchall():
            rows.append([name, _short(text), count(queries), count(ads), f"{share:.1%}"])
    return ReportTable(
        "Largest hubs",
        ("anchor set", "anchor", "queries", "ads", "of the set's edges"),
        rows,
        text_columns=2,
        note="An anchor that links a large part of the nodes pulls unrelated texts together.",
    )


def token_lengths(dataset: Dataset, encoder: str, max_length: int) -> ReportTable:
    """Count the tokens of each table's texts, by an encoder's tokenizer."""
    tokenizer = text_tokenizer(load_tokenizer(encoder), UNCUT, add_special_tokens=True)
    tables = [
        *(f"queries/{split}" for split in dataset.splits),
        "ads",
        *(f"anchors/{name}" for name in dataset.anchor_sets),
    ]
    rows = []
    for table in tables:
        num_texts = dataset.num_rows(table)
        ids = _sample_ids(num_texts, TEXTS_PER_TABLE)
        texts = dataset.rows_with_ids(table, ids)["text"].to_pylist()
        lengths, figures = measure_tokens(tokenizer, texts, max_length)
        too_long = (lengths > max_length).mean()
        places = -(-np.array([*PER_CENT.values()]) * len(lengths) // 100) - 1
        quantiles = np.sort(lengths)[places].tolist()
        counts = (len(lengths), num_texts, *quantiles)
        shares = (too_long, figures.share_unknown, figures.share_repeated)
        rows.append([table, *map(count, counts), *(f"{share:.1%}" for share in shares)])
    return ReportTable(
        "Token lengths",
        ("table", "counted", "texts", *PER_CENT, f"over {max_length}", "unknown", "repeated"),
        rows,
        note=f"Before truncation, with special tokens, by the tokenizer of {encoder}. Larger"
        " tables are sampled with a fixed seed. Unknown is the share of tokens that its"
        " vocabulary does not have; repeated, of texts that begin with the same"
        f" {max_length} tokens as an earlier one.",
    )


def samples(connection: Connection, dataset: Dataset) -> ReportTable:
    """Show some train queries, drawn by SEED, with their ads and anchors, as text."""
    ids = _sample_ids(dataset.num_rows(TRAIN), NUM_SAMPLES)
    queries = dataset.rows_with_ids(TRAIN, ids)
    clicks = f"SELECT query_id, unnest(ad_ids) AS ad_id FROM {name_literal(TRAIN)}"
    columns = {"ads": f"({clicks}) JOIN ads USING (ad_id)"}
    for name in dataset.anchor_sets:
        if dataset.has(edges := f"edges/{name}/query"):
            anchors = f"JOIN {name_literal(f'anchors/{name}')} USING (anchor_id)"
            columns[f"{name} anchors"] = f"{name_literal(edges)} {anchors}"
    cells = [[_short(text) for text in queries["text"].to_pylist()]]
    for linked in columns.values():
        sql = f"""SELECT query_id, list(text ORDER BY text) FROM {linked}
            WHERE query_id IN ({", ".join(map(str, ids))}) GROUP BY query_id"""
        texts = dict(connection.sql(sql).fetchall())
        cells.append([_listed(texts.get(query, [])) for query in ids])
    return ReportTable(
        "Some train queries",
        ("query", *columns),
        [*zip(*cells, strict=True)],
        text_columns=1 + len(columns),
        note="Drawn with a fixed seed.",
    )


def _sample_ids(num_rows: int, size: int) -> list[int]:
    """Draw ``size`` of the ids of a table by SEED, or all if there are fewer; ascending."""
    draw = np.random.default_rng(SEED)
    return np.sort(draw.choice(num_rows, min(size, num_rows), replace=False)).tolist()


def count(value: float) -> str:
    """Write a number without decimals."""
    return f"{value:,.0f}"


def average(value: float) -> str:
    """Write a number with two decimals."""
    return f"{value:,.2f}"


def _short(text: str) -> str:
    return shorten(text, SHOWN_CHARACTERS, placeholder=" …")


def _listed(texts: list[str]) -> str:
    more = len(texts) - SHOWN_TEXTS
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*map(_short, texts[:SHOWN_TEXTS]), *rest])
