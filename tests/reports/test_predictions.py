"""The page of predictions, against what is counted by hand."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import tables_of_page

from ramen_ray.data.store.predictions import predictions_schema
from ramen_ray.errors import UserError
from ramen_ray.reports.predictions_page import read_predictions, write_predictions_page

CLICKED = {"robin": ["wren", "heron"], "sloop": ["ketch"], "<b>": ["waltz"], "none": []}
KINDS = {"wren": "bird", "heron": "bird", "ketch": "boat", "waltz": "dance", "maple": "tree"}
ADS = list(KINDS)


def _found(shown):
    rows = [
        {
            "query_id": f"q-{query}",
            "query": query,
            "rank": rank,
            "ad_id": f"a-{ad}",
            "ad": ad,
            "score": 1 / rank,
            "hit": ad in CLICKED[query],
            "clicked_ads": CLICKED[query],
            "seen": query == "sloop",
            "train_clicks": ADS.index(ad),
            "group": "tail" if ad == "wren" else "head",
            "filter_kind": KINDS[ad],
            "clicked_filter_kind": [KINDS[one] for one in CLICKED[query]],
        }
        for query, ads in shown.items()
        for rank, ad in enumerate(ads, start=1)
    ]
    schema = predictions_schema(["ad_id", "text", "filter_kind"])
    return pa.Table.from_pylist(rows, schema).to_pandas()


def test_the_worst_queries_and_the_most_harmful_ads_are_first(tmp_path):
    shown = {
        "robin": ["maple", "heron"],
        "sloop": ["maple", "ketch"],
        "<b>": ["maple", "wren"],
        "none": ["maple", "wren"],
    }
    file = tmp_path / "page.html"
    write_predictions_page(file, "mine", _found(shown))
    page = file.read_text(encoding="utf-8")
    tables = tables_of_page(file)
    assert tables["Worst queries"] == [
        ["<b>", "waltz", "maple; wren", "no", "0 of 1"],
        ["robin", "wren; heron", "maple; ✓ heron", "no", "1 of 2"],
        ["sloop", "ketch", "maple; ✓ ketch", "yes", "1 of 1"],
    ]
    assert tables["Most harmful ads"][:2] == [
        ["maple", "head", "4", "0", "4"],
        ["wren", "tail", "2", "0", "0"],
    ]
    assert tables["Mixed up: kind"] == [
        ["bird", "tree", "1"],
        ["boat", "tree", "1"],
        ["dance", "tree", "1"],
        ["dance", "bird", "1"],
    ]
    assert "66.7% of the ads shown have a kind that no clicked ad of the query has." in page
    assert "<li>33% of 3 queries find nothing that was clicked.</li>" in page
    assert "<li>Queries that are new: 2, R@10 25.0%.</li>" in page
    assert "<li>Queries seen in training: 1, R@10 100.0%.</li>" in page


@pytest.mark.parametrize("other_dataset", [False, True])
def test_what_another_run_finds_is_told_as_won_and_lost(other_dataset, tmp_path):
    mine = _found({"robin": ["wren", "heron"], "sloop": ["maple"], "<b>": ["waltz"]})
    other = _found({"robin": ["wren", "maple"], "sloop": ["ketch"], "<b>": ["wren", "waltz"]})
    if other_dataset:
        clicked = other["clicked_ads"].map(lambda ads: ["maple", *ads])
        other = other.assign(query_id="q-robin", ad_id="a", clicked_ads=clicked, hit=True)
    write_predictions_page(tmp_path / "page.html", "mine", mine, other)
    tables = tables_of_page(tmp_path / "page.html")
    by_heron, by_maple = "heron (head, train clicks 1)", "maple (head, train clicks 4)"
    assert tables["Won: queries that find more"] == [
        [
            *("robin", "wren; heron", "✓ wren; ✓ heron", "✓ wren; maple"),
            *(f"{by_heron} in place of {by_maple}", "2 of 2", "1"),
        ]
    ]
    assert tables["Lost: queries that find less"] == [
        [
            *("sloop", "ketch", "maple", "✓ ketch"),
            *(f"ketch (head, train clicks 2) lost to {by_maple}", "0 of 1", "1"),
        ]
    ]
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Of 3 queries of both runs, 1 find more" in page
    assert "1 less, 1 as much" in page
    write_predictions_page(tmp_path / "page.html", "mine", mine, mine)
    tables = tables_of_page(tmp_path / "page.html")
    assert [tables[name] for name in tables if name.startswith(("Won", "Lost"))] == [[]] * 2


@pytest.mark.parametrize("content", [b"no parquet", None])
def test_other_files_are_refused(content, tmp_path):
    file = tmp_path / "some.parquet"
    if content is None:
        pq.write_table(pa.table({"rank": [1], "ad": ["x"]}), file)
    else:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"some\.parquet"):
        read_predictions(file)
