"""What gives held-out answers away, found by SQL as by plain loops, also in broken directories."""

import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import node_edges, query_table, text_table

from ramen_ray.data.engine import engine
from ramen_ray.data.leaks import REVERSED, find_answers, leaking, texts_of
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.store.schemas import NODE_TABLES

SPELLINGS = ["silk tie", "Silk  Tie", "SILK", "silk", "Ärmel", "ärmel", "hat", " Hat", "gloves"]
TEXTS = st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=6)
IDS = st.integers(-1, 7)  # some are wrong
CLICKS = st.lists(st.lists(IDS, max_size=3), min_size=6, max_size=6)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKD", text).lower().split())


def _shop(folder: Path, splits: dict[str, tuple[list[str], list[list[int]]]], **more: Any) -> Path:
    tables = {
        f"queries/{split}": query_table(texts, clicks[: len(texts)])
        for split, (texts, clicks) in splits.items()
    }
    return write_dataset(folder / "shop", tables | more, name="shop").path


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    queries=st.fixed_dictionaries(
        {split: st.tuples(TEXTS, CLICKS) for split in ("train", "validation", "test", "zero_shot")}
    ),
    ads=TEXTS,
    anchors=TEXTS,
    edges=CLICKS,
)
def test_leaks_are_those_of_plain_loops(
    queries: dict[str, tuple[list[str], list[list[int]]]],
    ads: list[str],
    anchors: list[str],
    edges: list[list[int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("leaks")
    tables = {
        "ads": text_table("ad_id", ads),
        "anchors/mine": text_table("anchor_id", anchors),
        "edges/mine/query": node_edges("query_id", edges),
    }
    dataset = Dataset(_shop(folder, queries, **tables))
    answers = {
        (_plain(text), _plain(ads[ad]))
        for split, (texts, clicks) in queries.items()
        if split != "train"
        for text, clicked in zip(texts, clicks, strict=False)
        for ad in clicked
        if 0 <= ad < len(ads)
    }
    both = answers | {(ad, query) for query, ad in answers}
    train = [_plain(text) for text in queries["train"][0]]
    with engine(folder, dataset=dataset) as connection:
        find_answers(connection, dataset.tables)
        assert sorted(connection.table("answers").fetchall()) == sorted(answers)
        for side, texts in (("query", train), ("ad", [_plain(text) for text in ads])):
            pairs = leaking(texts_of(NODE_TABLES[side]), texts_of("anchors/mine"))
            assert sorted(connection.sql(pairs).fetchall()) == [
                (node, anchor)
                for node, text in enumerate(texts)
                for anchor, other in enumerate(anchors)
                if (text, _plain(other)) in both
            ]
        pairs = leaking(*map(texts_of, NODE_TABLES.values()), REVERSED)
        assert sorted(connection.sql(pairs).fetchall()) == [
            (query, ad)
            for query, text in enumerate(train)
            for ad, other in enumerate(ads)
            if (_plain(other), text) in answers
        ]


def test_tables_may_have_nulls(tmp_path: Path) -> None:
    splits = {"train": (["silk"], [[0]]), "test": (["hat"], [[0]])}
    ads = text_table("ad_id", ["silk"])
    dataset = Dataset(_shop(tmp_path, splits, ads=ads))
    with engine(tmp_path, dataset=dataset) as connection:
        find_answers(connection, dataset.tables)
        nodes = "SELECT * FROM (VALUES (1, 'silk'), (NULL, 'silk'), (3, NULL)) nodes(id, folded)"
        pairs = leaking(nodes, "SELECT 5 AS id, 'hat' AS folded")
        assert set(connection.sql(pairs).fetchall()) == {(1, 5), (None, 5)}


def test_columns_of_the_users_own_do_not_hide_leaks(tmp_path: Path) -> None:
    splits = {"train": (["silk"], [[0]]), "test": (["hat"], [[0]])}
    path = _shop(tmp_path, splits, ads=text_table("ad_id", ["silk"]))
    for file in path.rglob("*.parquet"):
        rows = pq.read_table(file)
        pq.write_table(rows.append_column("folded", pa.array(["mine"] * len(rows))), file)
    dataset = Dataset(path)
    with engine(tmp_path, dataset=dataset) as connection:
        find_answers(connection, dataset.tables)
        assert connection.table("answers").fetchall() == [("hat", "silk")]
