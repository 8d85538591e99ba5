"""Predictions as a page: the worst queries, the most harmful ads, and what another run finds."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramen_ray.data.store.predictions import PREDICTIONS
from ramen_ray.errors import UserError
from ramen_ray.reports.page import write_page
from ramen_ray.reports.tables import ReportTable

AT = 10
SHOWN_ROWS, SHOWN_TEXTS = 30, 5
FOUND = f"Found: how many of the clicked ads are among the best {AT}; ✓ marks them."


def read_predictions(file: Path) -> pd.DataFrame:
    """Read each query's best ads from what jobs/evaluate.py has written; else a UserError."""
    try:
        return pq.read_table(file, filters=pc.field("rank") <= AT).cast(PREDICTIONS).to_pandas()
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} has no predictions of jobs/evaluate.py: {error}") from error


def write_predictions_page(
    file: Path, title: str, found: pd.DataFrame, other: pd.DataFrame | None = None
) -> None:
    """Write a page about the best ads of each query that has clicks.

    ``found`` has the columns of PREDICTIONS, ranks up to AT. With the same of an ``other`` run, the
    page begins with the differences.
    """
    queries = _by_query(found)
    missed = (queries["hits"] == 0).mean()
    words = [f"{missed:.0%} of {len(queries):,} queries find nothing that was clicked."]
    for seen, some in queries.groupby("seen"):
        what = "seen in training" if seen else "that are new"
        words.append(f"Queries {what}: {len(some):,}, R@{AT} {some['recall'].mean():.1%}.")
    worst = queries.sort_values(["recall", "num_clicked"], ascending=[True, False], kind="stable")
    some = queries.sample(min(SHOWN_ROWS, len(queries)), random_state=0)
    tables = [
        _listing("Worst queries", worst, is_open=True),
        _harmful(found),
        _by_popularity(found),
        _listing("Some queries", some),
    ]
    if other is not None:
        both = queries.merge(_by_query(other), on="query_id", suffixes=("", "_other"))
        both["gain"] = both["recall"] - both["recall_other"]
        won, lost = both[both["gain"] > 0], both[both["gain"] < 0]
        equal = len(both) - len(won) - len(lost)
        words.append(
            f"Of {len(both):,} queries of both runs, {len(won):,} find more clicked ads than in "
            f"the other, {len(lost):,} less, {equal:,} as much."
        )
        tables = [
            _differences("Won: queries that find more", won.sort_values("gain", ascending=False)),
            _differences("Lost: queries that find less", lost.sort_values("gain")),
            *tables,
        ]
    write_page(file, title, f"The best {AT} ads of each query.", words, tables)


def _by_query(found: pd.DataFrame) -> pd.DataFrame:
    """Return a row per query that has clicks, by its id."""
    marked = found["ad"].where(~found["hit"], "✓ " + found["ad"])
    ranked = found.assign(marked=marked).sort_values("rank", kind="stable")
    queries = ranked.groupby("query_id", sort=False).agg(
        query=("query", "first"),
        seen=("seen", "first"),
        clicked=("clicked_ads", "first"),
        hits=("hit", "sum"),
        shown=("marked", list),
    )
    queries["num_clicked"] = queries["clicked"].map(len)
    queries = queries[queries["num_clicked"] > 0]
    return queries.assign(recall=queries["hits"] / queries["num_clicked"])


def _listing(title: str, queries: pd.DataFrame, is_open: bool = False) -> ReportTable:
    rows = [
        [
            *(one.query, _listed(one.clicked), _listed(one.shown), "yes" if one.seen else "no"),
            f"{one.hits} of {one.num_clicked}",
        ]
        for one in queries.head(SHOWN_ROWS).itertuples()
    ]
    columns = ("query", "clicked ads", "what it gets", "in training", "found")
    return ReportTable(title, columns, rows, text_columns=4, note=FOUND, is_open=is_open)


def _differences(title: str, queries: pd.DataFrame) -> ReportTable:
    rows = [
        [
            *(one.query, _listed(one.clicked), _listed(one.shown), _listed(one.shown_other)),
            *(f"{one.hits} of {one.num_clicked}", f"{one.hits_other}"),
        ]
        for one in queries.head(SHOWN_ROWS).itertuples()
    ]
    columns = ("query", "clicked ads", "what it gets", "in the other run", "found", "by the other")
    return ReportTable(title, columns, rows, text_columns=4, note=FOUND, is_open=True)


def _harmful(found: pd.DataFrame) -> ReportTable:
    ads = found.groupby("ad_id", sort=False).agg(
        ad=("ad", "first"),
        shown=("hit", "size"),
        hits=("hit", "sum"),
        train_clicks=("train_clicks", "first"),
        group=("group", "first"),
    )
    ads = ads.assign(vain=ads["shown"] - ads["hits"])
    rows = [
        [one.ad, one.group, f"{one.vain:,}", f"{one.hits:,}", f"{one.train_clicks:,}"]
        for one in ads.nlargest(SHOWN_ROWS, "vain").itertuples()
    ]
    columns = ("ad", "group", "shown in vain", "hits", "train clicks")
    note = "Those that most often take a place from the clicked ones."
    return ReportTable("Most harmful ads", columns, rows, text_columns=2, note=note)


def _by_popularity(found: pd.DataFrame) -> ReportTable:
    rows = [
        [group, f"{some['ad_id'].nunique():,}", f"{len(some):,}", f"{some['hit'].mean():.1%}"]
        for group, some in found.groupby("group")
    ]
    return ReportTable("By popularity", ("group", "ads shown", "shown", "hits"), rows)


def _listed(texts: list[str]) -> str:
    return "; ".join([*texts[:SHOWN_TEXTS], *(["…"] if len(texts) > SHOWN_TEXTS else [])])
