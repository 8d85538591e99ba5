"""Predictions as a page: worst queries, harmful ads, what is mixed up, what another run finds."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ramen_ray.data.store.predictions import CLICKED, predictions_schema
from ramen_ray.data.store.schemas import FILTER
from ramen_ray.errors import UserError
from ramen_ray.reports.report_tables import ReportTable, write_page

AT = 10
SHOWN_ROWS = 30
SHOWN_TEXTS = 5
FOUND = f"Found: how many of the clicked ads are among the best {AT}; ✓ marks them."
PAIR = ["query_id", "ad"]


def read_predictions(file: Path) -> pd.DataFrame:
    """Read each query's best ads from what jobs/evaluate.py has written; else a UserError."""
    try:
        table = pq.read_table(file, filters=pc.field("rank") <= AT)
        return table.cast(predictions_schema(table.column_names)).to_pandas()
    except (OSError, ValueError, pa.ArrowInvalid) as error:
        raise UserError(f"{file} has no predictions of jobs/evaluate.py: {error}") from error


def write_predictions_page(
    file: Path, title: str, predictions: pd.DataFrame, other: pd.DataFrame | None = None
) -> None:
    """Write a page about the best ads of each query that has clicks.

    ``predictions`` have the columns of predictions_schema, ranks up to AT. With those of another
    run, perhaps on another dataset, the page begins with differences, by the clicks of this one.
    """
    queries = _by_query(predictions)
    missed = (queries["hits"] == 0).mean()
    words = [f"{missed:.0%} of {len(queries):,} queries find nothing that was clicked."]
    for seen, some in queries.groupby("seen"):
        what = "seen in training" if seen else "that are new"
        words.append(f"Queries {what}: {len(some):,}, R@{AT} {some['recall'].mean():.1%}.")
    worst = queries.sort_values(["recall", "num_clicked"], ascending=[True, False], kind="stable")
    tables = [_worst(worst), _harmful(predictions), *_mixed_up(predictions)]
    if other is not None:
        mine = _judged_by(queries, predictions)
        others = _judged_by(queries, other)
        joined = _by_query(mine).merge(_by_query(others), on="query_id", suffixes=("", "_other"))
        joined["gain"] = joined["recall"] - joined["recall_other"]
        won = joined[joined["gain"] > 0]
        lost = joined[joined["gain"] < 0]
        equal = len(joined) - len(won) - len(lost)
        words.append(
            f"Of {len(joined):,} queries of both runs, {len(won):,} find more clicked ads than in "
            f"the other, {len(lost):,} less, {equal:,} as much."
        )
        ours = _only_in(mine, others, joined)
        theirs = _only_in(others, mine, joined)
        tables = [
            _differences("Won: queries that find more", won, _reasons(ours, theirs, "in place of")),
            _differences("Lost: queries that find less", lost, _reasons(theirs, ours, "lost to")),
            *tables,
        ]
    write_page(file, title, f"The best {AT} ads of each query.", words, tables)


def _judged_by(queries: pd.DataFrame, predictions: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions for the texts of ``queries``, with the ids and clicks of these.

    Two datasets, such as those of two weeks, may give the same text another id and other clicks.
    """
    clicks_of = queries.reset_index().drop_duplicates("query").set_index("query")
    rows = predictions[predictions["query"].isin(clicks_of.index)].drop_duplicates(
        ["query", "rank"]
    )
    clicked = rows["query"].map(clicks_of["clicked"])
    hits = [ad in ads for ad, ads in zip(rows["ad"], clicked, strict=True)]
    return rows.assign(
        query_id=rows["query"].map(clicks_of["query_id"]), clicked_ads=clicked, hit=hits
    )


def _by_query(predictions: pd.DataFrame) -> pd.DataFrame:
    """Return a row per query that has clicks, by its id."""
    marked = predictions["ad"].where(~predictions["hit"], "✓ " + predictions["ad"])
    ranked = predictions.assign(marked=marked).sort_values("rank", kind="stable")
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


def _worst(queries: pd.DataFrame) -> ReportTable:
    rows = [
        [
            *(
                query.query,
                _listed(query.clicked),
                _listed(query.shown),
                "yes" if query.seen else "no",
            ),
            f"{query.hits} of {query.num_clicked}",
        ]
        for query in queries.head(SHOWN_ROWS).itertuples()
    ]
    columns = ("query", "clicked ads", "what it gets", "in training", "found")
    return ReportTable("Worst queries", columns, rows, text_columns=4, note=FOUND, is_open=True)


def _differences(title: str, queries: pd.DataFrame, why: dict[str, str]) -> ReportTable:
    most = queries.sort_values("gain", key=abs, ascending=False, kind="stable").head(SHOWN_ROWS)
    rows = [
        [
            *(
                query.query,
                _listed(query.clicked),
                _listed(query.shown),
                _listed(query.shown_other),
            ),
            *(why[query.Index], f"{query.hits} of {query.num_clicked}", f"{query.hits_other}"),
        ]
        for query in most.itertuples()
    ]
    columns = (
        *("query", "clicked ads", "what it gets", "in the other run"),
        *("why", "found", "by the other"),
    )
    return ReportTable(title, columns, rows, text_columns=5, note=FOUND, is_open=True)


def _only_in(predictions: pd.DataFrame, other: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    """Return the ads of ``queries``, best first, that the ``other`` run does not show to them."""
    pairs = pd.MultiIndex.from_frame(predictions[PAIR])
    others = pd.MultiIndex.from_frame(other[PAIR])
    rows = predictions[~pairs.isin(others) & predictions["query_id"].isin(queries.index)]
    return rows.sort_values("rank", kind="stable")


def _reasons(finds: pd.DataFrame, misses: pd.DataFrame, joint: str) -> dict[str, str]:
    """Say by query which clicked ads only one run finds, and what the other has best instead."""
    instead = _named(misses[~misses["hit"]])
    return {
        query: "; ".join(ads) + "".join(f" {joint} {ad}" for ad in instead[query][:1])
        for query, ads in _named(finds[finds["hit"]]).items()
    }


def _named(ads: pd.DataFrame) -> defaultdict[str, list[str]]:
    """Name each query's ads, with what training knew of them."""
    named = defaultdict[str, list[str]](list)
    for ad in ads.itertuples():
        named[ad.query_id].append(f"{ad.ad} ({ad.group}, train clicks {ad.train_clicks:,})")
    return named


def _mixed_up(predictions: pd.DataFrame) -> Iterator[ReportTable]:
    """Yield, for each column kept of the ads, which values are shown where others are clicked."""
    for column in (name for name in predictions if name.startswith(FILTER)):
        name = column.removeprefix(FILTER)
        wanted_by = predictions[CLICKED + column]
        pairs = [
            (max(wanted, key=list(wanted).count), value)
            for wanted, value in zip(wanted_by, predictions[column], strict=True)
            if len(wanted) and value not in wanted
        ]
        rows = [
            [wanted, value, f"{times:,}"]
            for (wanted, value), times in Counter(pairs).most_common(SHOWN_ROWS)
        ]
        share = len(pairs) / max((wanted_by.map(len) > 0).sum(), 1)
        note = f"{share:.1%} of the ads shown have a {name} that no clicked ad of the query has."
        columns = (f"{name} of clicked ads", "shown instead", "times")
        yield ReportTable(f"Mixed up: {name}", columns, rows, text_columns=2, note=note)


def _harmful(predictions: pd.DataFrame) -> ReportTable:
    ads = predictions.groupby("ad_id", sort=False).agg(
        ad=("ad", "first"),
        shown=("hit", "size"),
        hits=("hit", "sum"),
        train_clicks=("train_clicks", "first"),
        group=("group", "first"),
    )
    ads = ads.assign(vain=ads["shown"] - ads["hits"])
    rows = [
        [ad.ad, ad.group, f"{ad.vain:,}", f"{ad.hits:,}", f"{ad.train_clicks:,}"]
        for ad in ads.nlargest(SHOWN_ROWS, "vain").itertuples()
    ]
    columns = ("ad", "group", "shown in vain", "hits", "train clicks")
    note = "Those that most often take a place from the clicked ones."
    return ReportTable("Most harmful ads", columns, rows, text_columns=2, note=note)


def _listed(texts: list[str]) -> str:
    rest = ["…"] if len(texts) > SHOWN_TEXTS else []
    return "; ".join([*texts[:SHOWN_TEXTS], *rest])
