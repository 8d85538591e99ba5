"""Given splits, filter pairs, own texts and queries without clicks, against plain loops."""

import re
from collections import defaultdict
from dataclasses import dataclass, replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support import errors_in, import_in_process, write_rows
from written_out import clicks_of, column_of, pairs_of, plain

from ramen_ray.data.store.dataset import DatasetError
from ramen_ray.data.store.schemas import SPLITS
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, Splits, UserTables

QUERIES = ["red shoes", "Red  Shoes", "boots", "hat", "HAT", "socks", "gloves", "wool hat"]
ADS = ["RED shoes", "boots", "a hat shop", "Socks", "hat"]
PAIRS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=24)


GROUPS = sorted({plain(text) for text in QUERIES})


@dataclass
class Shop:
    """Tables of a shop: queries by number, their splits by folded text, clicks and filter pairs."""

    split_of: dict[str, str]
    clicks: list[tuple[int, int]]
    filters: list[tuple[int, int]]

    def write(self, folder, own_table):
        """Write them; the splits as a table that leaves train queries out, or as a column."""
        splits = [self.split_of[plain(text)] for text in QUERIES]
        ids = [f"q{number}" for number in range(len(QUERIES))]
        queries = [*zip(ids, QUERIES, splits, strict=True)]
        write_rows(folder / "queries.csv", "query_id text part", queries)
        held_out = [(name, part) for name, _, part in queries if part != "train"]
        write_rows(folder / "splits.csv", "query_id part", held_out)
        write_rows(folder / "ads.csv", "ad_id text", enumerate(ADS))
        for name, pairs in (("clicks", self.clicks), ("filters", self.filters)):
            rows = ((ids[query], ad, 1, "2026-03-01") for query, ad in pairs)
            write_rows(folder / f"{name}.csv", "query_id ad_id count day", rows)
        names = {name: str(folder / f"{name}.csv") for name in ("clicks", "queries", "ads")}
        counted = {"clicks_weight": "count", "clicks_time": "day"}
        given = {"columns": Columns(**counted, query_split="part")}
        if own_table:
            given = {"columns": Columns(**counted, splits_split="part")}
            given["query_splits"] = str(folder / "splits.csv")
        if self.filters:
            names["filters"] = str(folder / "filters.csv")
        return UserTables(**names, **given)

    def by_loops(self, fewest, drop_own):
        """What each split holds: the ads of each query, and its filter pairs, all by text."""
        queries = {split: {} for split in SPLITS}
        filters = defaultdict(set)
        for number, text in enumerate(QUERIES):
            split = self.split_of[plain(text)]
            ads = {ADS[ad] for query, ad in self.clicks if query == number}
            own = {ad for ad in ADS if plain(ad) == plain(text)} if drop_own else set()
            ads -= own
            if len(ads) >= max(fewest, split != "train"):
                queries[split][text] = ads
                dropped = {ADS[ad] for query, ad in self.filters if query == number} | own
                if split != "train":
                    filters[split] |= {(text, ad) for ad in dropped}
        return queries, {split: pairs for split, pairs in filters.items() if pairs}


def _contents(dataset):
    queries = {
        split: {query: set(ads) for query, ads in clicks_of(dataset, split).items()}
        for split in SPLITS
    }
    filters = {}
    for split in SPLITS:
        if dataset.has(table := f"filters/{split}"):
            filters[split] = pairs_of(dataset, table, f"queries/{split}", "ads")
            assert len(filters[split]) == dataset.num_rows(table)
    return queries, {split: pairs for split, pairs in filters.items() if pairs}


@settings(max_examples=10)
@given(
    splits=st.lists(st.sampled_from(SPLITS), min_size=len(GROUPS), max_size=len(GROUPS)),
    clicks=PAIRS.filter(len),
    filters=PAIRS,
    fewest=st.sampled_from([0, 1, 2]),
    drop_own=st.booleans(),
    own_table=st.booleans(),
)
def test_given_splits_and_filters_are_imported_as_plain_loops_would(
    tmp_path_factory, splits, clicks, filters, fewest, drop_own, own_table
):
    splits[1] = "validation"  # else some would be drawn
    shop = Shop(dict(zip(GROUPS, splits, strict=True)), clicks, filters)
    folder = tmp_path_factory.mktemp("shop")
    tables = shop.write(folder, own_table)
    tables = replace(tables, min_ads_per_query=fewest, drop_own_text=drop_own)
    queries, pairs = shop.by_loops(fewest, drop_own)
    if not all(any(rows.values()) for rows in queries.values()):
        event("a split would be empty")
        with pytest.raises(DatasetError, match="split would have no queries"):
            import_in_process(tables, folder / "out")
        return
    dataset, findings = import_in_process(tables, folder / "out")
    assert findings == []
    assert errors_in(dataset) == []
    assert _contents(dataset) == (queries, pairs)


SHOP = Shop(
    {text: SPLITS[n % 3] for n, text in enumerate(GROUPS)},
    [(query, ad) for query in range(8) for ad in range(5)],
    [(2, 0), (5, 1), (7, 2)],
)


def test_without_a_given_validation_split_train_queries_are_held_out(tmp_path):
    queries = [f"query {n}" for n in range(300)]
    rows = ((query, f"ad {n % 7}") for n, query in enumerate(queries))
    clicks = write_rows(tmp_path / "clicks.csv", "query ad", rows)
    held_out = ((query, "test") for query in queries[::5])
    test = write_rows(tmp_path / "test.csv", "query split", held_out)
    tables = UserTables(clicks, query_splits=test, splits=Splits(validation_fraction=0.2))
    dataset, _ = import_in_process(tables, tmp_path / "out")
    found = {split: set(column_of(dataset, f"queries/{split}")) for split in SPLITS}
    assert found["test"] == set(queries[::5])
    assert found["train"] | found["validation"] == set(queries) - found["test"]
    assert len(found["validation"]) == pytest.approx(48, abs=20)


BAD_ROWS = {
    "splits.csv": ["q6,dev", "q6,", "zz,test", "q3,test", "q4,train"],
    "filters.csv": ["zz,1,1,", "q1,77,1,", "q1,,1,"],
    "clicks.csv": [
        " ,1,1,2026-03-01",
        "q1,1,few,2026-03-01",
        "q1,1,1,today",
        "q1,77,1,2026-03-01",
        "zz,1,1,2026-03-01",
        "q1,1",
    ],
}
PLACES = [
    "splits.csv, row 7, column 'part': 2",
    "splits.csv, row 9, column 'query_id': 1",
    "splits.csv, row 11, column 'query_id': 1",
    "filters.csv, row 5, column 'query_id': 1",
    "filters.csv, row 6, column 'ad_id': 1",
    "filters.csv, row 7, column 'ad_id': 1",
    "clicks.csv, row 42, column 'query_id': 1",
    "clicks.csv, row 43, column 'count': 1",
    "clicks.csv, row 44, column 'day': 1",
    "clicks.csv, row 45, column 'ad_id': 1",
    "clicks.csv, row 46, column 'query_id': 1",
    "clicks.csv, row 47: 1",
]


def test_bad_rows_are_refused_or_left_out_and_of_two_splits_the_held_out_one_counts(tmp_path):
    tables = SHOP.write(tmp_path, own_table=True)
    for file, rows in BAD_ROWS.items():
        with (tmp_path / file).open("a") as table:
            table.writelines(f"{row}\n" for row in rows)
    with pytest.raises(DatasetError) as error:
        import_tables(tables, tmp_path / "out")
    found = re.findall(r"\w+\.csv, row \d+(?:, column '\w+')?: \d+", str(error.value))
    assert sorted(found) == sorted(PLACES)
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    lenient = replace(tables, skip_bad_rows=True)
    dataset, findings = import_in_process(lenient, tmp_path / "out")
    assert _contents(dataset) == SHOP.by_loops(1, drop_own=False)
    assert len(findings) == len(PLACES)
    for finding in findings:
        becomes = "the held-out split counts" if "another split" in str(finding) else "left out"
        assert str(finding).endswith(f"; {becomes}")
