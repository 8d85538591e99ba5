"""The page "From a warehouse": its SQL gives what the import of the same tables gives."""

import hashlib
import re
import shutil
import subprocess
import sys
from datetime import date, timedelta

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import ROOT
from written_out import column_of, edge_weights_of, judged_of

from ramen_ray.data.checks.validation import validate
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables

PAGE = (ROOT / "docs" / "how_to" / "warehouse.md").read_text(encoding="utf-8")
TABLES = (ROOT / "docs" / "how_to" / "warehouse.sql").read_text(encoding="utf-8")
NAMES = ("clicks", "catalogue", "judgements", "query_links", "ad_links")
COLUMNS = Columns(
    clicks_query="query",
    clicks_ad="ad",
    ad_id="ad",
    edges_ad="ad",
    edges_weight="weight",
    judged_source="source",
)
FIRST_DAY = date(2026, 10, 1)
BY_TIME = Splits(validation_from="2026-10-25", test_from="2026-10-28")
UNKNOWN_AD = 999


def _block(section, start):
    """Return the page's first block of code after a paragraph of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.search(rf"^{start}.*?^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"{section}: there is no block after {start!r}"
    return found[1]


def _statements(script):
    return [one for one in re.sub(r"--.*", "", script).split(";") if one.strip()]


@pytest.fixture
def tables(tmp_path):
    """Parquet of the five tables: spellings, repeats, unknown names, and edges that leak."""
    draws = np.random.default_rng(5)
    queries = [f"Query {n}" for n in range(150)] + [f"query  {n}" for n in range(0, 150, 7)]
    queries += ['it\'s "quoted"', "Größe; 40", "日本 語"]
    first_days = draws.integers(0, 31, len(queries))
    clicks = []
    for query, first in zip(queries, first_days.tolist(), strict=True):
        for ad in draws.integers(0, 40, 1 + draws.poisson(3)).tolist():
            day = min(30, first + int(draws.integers(0, 9)))
            clicks += [(query, ad, day)] * int(draws.integers(1, 3))
    clicks += [(query, UNKNOWN_AD, day) for query, _, day in clicks[::9]]
    catalogue = [(ad, f"Ad {ad}" if ad % 4 else f"query {ad}") for ad in range(45)]
    texts = [text for _, text in catalogue]
    anchors = [*(f"anchor {n}" for n in range(20)), *texts, *queries[:40]]
    links = [
        (queries[int(draws.integers(len(queries)))], anchors[int(draws.integers(len(anchors)))])
        for _ in range(4000)
    ]
    links += [("no such query", "anchor 1")]
    ad_links = [(int(draws.integers(45)), anchor) for _, anchor in links[:2000]]
    ad_links += [(UNKNOWN_AD, "anchor 1")]
    judgements = [
        (queries[int(draws.integers(len(queries)))], int(draws.integers(40)), level / 4, source)
        for level, source in zip(draws.integers(0, 5, 900), ["human", "llm"] * 450, strict=True)
    ]
    judgements += [("no such query", 1, 0.5, "human"), (queries[0], UNKNOWN_AD, 0.5, "human")]
    frames = {
        "clicks": pd.DataFrame(clicks, columns=["query", "ad", "day"]),
        "catalogue": pd.DataFrame(catalogue, columns=["ad", "text"]),
        "judgements": pd.DataFrame(judgements, columns=["query", "ad", "grade", "source"]),
        "query_links": pd.DataFrame(links, columns=["query", "anchor"]),
        "ad_links": pd.DataFrame(ad_links, columns=["ad", "anchor"]),
    }
    frames["clicks"]["day"] = [FIRST_DAY + timedelta(day) for day in frames["clicks"]["day"]]
    for name in NAMES[3:]:
        frames[name]["weight"] = draws.integers(1, 4, len(frames[name])).astype(float)
    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
    return tmp_path


def _hash_split(query):
    drawn = int(hashlib.md5(" ".join(query.lower().split()).encode()).hexdigest()[:4], 16)
    return "test" if drawn < 0x1999 else "validation" if drawn < 0x2666 else "train"


def _imported(folder, by):
    """Import the same tables, with the splits of the page."""
    queries = dict.fromkeys(pq.read_table(folder / "clicks.parquet")["query"].to_pylist())
    splits = {"query": list(queries), "split": [*map(_hash_split, queries)]}
    pq.write_table(pa.table(splits), folder / "splits.parquet")
    files = {name: str(folder / f"{name}.parquet") for name in NAMES}
    options = {"query_splits": str(folder / "splits.parquet"), "columns": COLUMNS}
    if by == "Or by time":
        columns = Columns(**{**vars(COLUMNS), "clicks_time": "day"})
        options = {"splits": BY_TIME, "columns": columns}
    settings = UserTables(
        clicks=files["clicks"],
        ads=files["catalogue"],
        judged=files["judgements"],
        query_edges={"links": files["query_links"]},
        ad_edges={"links": files["ad_links"]},
        skip_bad_rows=True,
        **options,
    )
    return import_tables(settings, folder / f"imported-{len(by)}")


def _finished(folder):
    """Run the page's last step in a folder with the export."""
    block = _block("5. The dataset directory", "Where you train")
    subprocess.run([sys.executable, "-c", block], cwd=folder, check=True)
    return Dataset(folder / "mine")


def _content(dataset):
    """Return a dataset directory's content by texts, whatever its ids are."""
    ads = dataset.read("ads").to_pylist()
    content = {"ads": {ad["source_id"]: ad["text"] for ad in ads}}
    content["anchors"] = sorted(column_of(dataset, "anchors/links"))
    for split in SPLITS:
        content[split] = {
            query["text"]: sorted(ads[ad]["source_id"] for ad in query["ad_ids"])
            for query in dataset.read(f"queries/{split}").to_pylist()
        }
        content[f"judged/{split}"] = judged_of(dataset, split)
    for side in ("query", "ad"):
        content[side] = edge_weights_of(dataset, "links", side)
    return content


def _check(made, folder, by):
    content = _content(made)
    expected = _content(_imported(folder, by))
    for what, rows in expected.items():
        assert content[what] == rows, what
    findings = validate(made)
    assert not [finding for finding in findings if finding.severity == "error"]
    warnings = " ".join(finding.message for finding in findings)
    assert "two splits" not in warnings and "answer" not in warnings


@pytest.mark.parametrize("by", ["By a hash", "Or by time"])
def test_the_sql_in_duckdb_gives_what_the_import_gives(by, tables):
    (tables / "exported").mkdir()
    with duckdb.connect() as connection:
        for name in NAMES:
            connection.execute(f"CREATE VIEW {name} AS FROM '{tables}/{name}.parquet'")
        script = _block("1. Functions", "DuckDB") + _block("2. Splits", by) + TABLES
        connection.execute(script)
        export = _block("4. Export", "DuckDB").replace("'exported/", f"'{tables}/exported/")
        connection.execute(export)
    _check(_finished(tables), tables, by)


@pytest.mark.slow
def test_the_sql_in_spark_gives_what_the_import_gives(tables, monkeypatch):
    sql = pytest.importorskip("pyspark.sql", reason="pip install -e '.[warehouse]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed: apt-get install default-jre-headless")
    monkeypatch.chdir(tables)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.warehouse.dir": str(tables / "warehouse"),
        "spark.ui.enabled": "false",
    }
    spark = sql.SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    try:
        for name in NAMES:
            spark.read.parquet(str(tables / f"{name}.parquet")).createOrReplaceTempView(name)
        functions = _statements(_block("1. Functions", "Spark"))
        for by in ("By a hash", "Or by time"):
            for made in spark.catalog.listTables():
                if not made.isTemporary:
                    spark.sql(f"DROP TABLE {made.name}")
            script = _block("2. Splits", by) + TABLES + _block("4. Export", "Spark")
            for statement in functions + _statements(script):
                spark.sql(statement)
            functions = []
            _check(_finished(tables), tables, by)
            (tables / "mine").rename(tables / f"mine-{len(by)}")
    finally:
        spark.stop()
