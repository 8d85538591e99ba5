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
from ramen_ray.reports.pages import write_page
from ramen_ray.reports.report_tables import ReportTable

AT = 10
SHOWN_ROWS, SHOWN_TEXTS = 30, 5
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
    file: Path, title: str, found: pd.DataFrame, other: pd.DataFrame | None = None
) -> None:
    """Write a page about the best ads of each query that has clicks.

    ``found`` has the columns of predictions_schema, ranks up to AT. With the same of an ``other``
    run, perhaps of another dataset, the page begins with differences, by the clicks of ``found``.
    """
    queries = _by_query(found)
    missed = (queries["hits"] == 0).mean()
    words = [f"{missed:.0%} of {len(queries):,} queries find nothing that was clicked."]
    for seen, some in queries.groupby("seen"):
        what = "seen in training" if seen else "that are new"
        words.append(f"Queries {what}: {len(some):,}, R@{AT} {some['recall'].mean():.1%}.")
    worst = queries.sort_values(["recall", "num_clicked"], ascending=[True, False], kind="stable")
    some = queries.sample(min(SHOWN_ROWS, len(queries)), random_state=0)
    groups = [
        [group, f"{of['ad_id'].nunique():,}", f"{len(of):,}", f"{of['hit'].mean():.1%}"]
        for group, of in found.groupby("group")
    ]
    tables = [
        _listing("Worst queries", worst, is_open=True),
        _harmful(found),
        *_mixed_up(found),
        ReportTable("By popularity", ("group", "ads shown", "shown", "hits"), groups),
        _listing("Some queries", some),
    ]
    if other is not None:
        mine, others = (_judged_by(queries, one) for one in (found, other))
        both = _by_query(mine).merge(_by_query(others), on="query_id", suffixes=("", "_other"))
        both["gain"] = both["recall"] - both["recall_other"]
        won, lost = both[both["gain"] > 0], both[both["gain"] < 0]
        equal = len(both) - len(won) - len(lost)
        words.append(
            f"Of {len(both):,} queries of both runs, {len(won):,} find more clicked ads than in "
            f"the other, {len(lost):,} less, {equal:,} as much."
        )
        ours, theirs = _only_in(mine, others, both), _only_in(others, mine, both)
        tables = [
            _by_what_differs(ours, theirs),
            _differences("Won: queries that find more", won, _reasons(ours, theirs, "in place of")),
            _differences("Lost: queries that find less", lost, _reasons(theirs, ours, "lost to")),
            *tables,
        ]
    write_page(file, title, f"The best {AT} ads of each query.", words, tables)


def _judged_by(queries: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the ads found for the same texts of ``queries``, with their ids and their clicks.

    Of two datasets, such as those of two weeks, texts are the same, but ids and clicks may not be.
    """
    known = queries.reset_index().drop_duplicates("query").set_index("query")
    rows = found[found["query"].isin(known.index)].drop_duplicates(["query", "rank"])
    clicked = rows["query"].map(known["clicked"])
    hits = [ad in ads for ad, ads in zip(rows["ad"], clicked, strict=True)]
    return rows.assign(query_id=rows["query"].map(known["query_id"]), clicked_ads=clicked, hit=hits)


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


def _differences(title: str, queries: pd.DataFrame, why: dict[str, str]) -> ReportTable:
    most = queries.sort_values("gain", key=abs, ascending=False, kind="stable").head(SHOWN_ROWS)
    rows = [
        [
            *(one.query, _listed(one.clicked), _listed(one.shown), _listed(one.shown_other)),
            *(why[one.Index], f"{one.hits} of {one.num_clicked}", f"{one.hits_other}"),
        ]
        for one in most.itertuples()
    ]
    shown = ("what it gets", "in the other run", "why", "found", "by the other")
    columns = ("query", "clicked ads", *shown)
    return ReportTable(title, columns, rows, text_columns=5, note=FOUND, is_open=True)


def _only_in(found: pd.DataFrame, other: pd.DataFrame, both: pd.DataFrame) -> pd.DataFrame:
    """Return the ads, best first, that the ``other`` run does not show to a query of ``both``."""
    pairs, others = (pd.MultiIndex.from_frame(one[PAIR]) for one in (found, other))
    rows = found[~pairs.isin(others) & found["query_id"].isin(both.index)]
    return rows.sort_values("rank", kind="stable")


def _reasons(finds: pd.DataFrame, misses: pd.DataFrame, joint: str) -> dict[str, str]:
    """Say by query which clicked ads only one run finds, and what the other has best instead."""
    found, instead = (_named(rows) for rows in (finds[finds["hit"]], misses[~misses["hit"]]))
    return {
        query: "; ".join(ads) + "".join(f" {joint} {ad}" for ad in instead[query][:1])
        for query, ads in found.items()
    }


def _named(ads: pd.DataFrame) -> defaultdict[str, list[str]]:
    """Name each query's ads, with what training knew of them."""
    named = defaultdict[str, list[str]](list)
    for one in ads.itertuples():
        named[one.query_id].append(f"{one.ad} ({one.group}, train clicks {one.train_clicks:,})")
    return named


def _by_what_differs(ours: pd.DataFrame, theirs: pd.DataFrame) -> ReportTable:
    """Count the clicked ads that only one run finds, by what training knew of query and ad."""
    sides = (one[one["hit"]].groupby(["seen", "group"]).size() for one in (ours, theirs))
    counts = pd.concat(sides, axis=1, keys=["ours", "theirs"]).fillna(0).astype(int).sort_index()
    rows = [
        ["seen" if seen else "new", group, f"{won:,}", f"{lost:,}", f"{won - lost:+,}"]
        for (seen, group), won, lost in counts.itertuples()
    ]
    columns = ("query", "clicked ad", "found here only", "by the other only", "difference")
    note = "Whether training has seen the query, and how popular the ad is."
    return ReportTable("Why", columns, rows, text_columns=2, note=note, is_open=True)


def _mixed_up(found: pd.DataFrame) -> Iterator[ReportTable]:
    """Yield, for each column kept of the ads, which values are shown where others are clicked."""
    for column in (name for name in found if name.startswith(FILTER)):
        name, wanted_by = column.removeprefix(FILTER), found[CLICKED + column]
        pairs = [
            (max(wanted, key=list(wanted).count), shown)
            for wanted, shown in zip(wanted_by, found[column], strict=True)
            if len(wanted) and shown not in wanted
        ]
        rows = [
            [wanted, shown, f"{times:,}"]
            for (wanted, shown), times in Counter(pairs).most_common(SHOWN_ROWS)
        ]
        share = len(pairs) / max((wanted_by.map(len) > 0).sum(), 1)
        note = f"{share:.1%} of the ads shown have a {name} that no clicked ad of the query has."
        columns = (f"{name} of clicked ads", "shown instead", "times")
        yield ReportTable(f"Mixed up: {name}", columns, rows, text_columns=2, note=note)


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


def _listed(texts: list[str]) -> str:
    return "; ".join([*texts[:SHOWN_TEXTS], *(["…"] if len(texts) > SHOWN_TEXTS else [])])
