"""The files of the made-up shop are what their recipe draws, and can be imported as they are."""

import csv

import pytest
from support import ROOT, errors_in

import shop
import shop_shown
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import Columns, UserTables

SHOP = ROOT / "datasets" / "shop"


def test_the_recipe_draws_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["shop.py", "--output", str(tmp_path)])
    shop.main()
    made = {file.relative_to(tmp_path): file.read_bytes() for file in tmp_path.rglob("*.csv")}
    kept = {file.relative_to(SHOP): file.read_bytes() for file in SHOP.rglob("*.csv")}
    assert made == kept
    assert len(made) == 6


@pytest.mark.parametrize("week", [1, 2])
def test_a_week_is_a_dataset_without_faults(week, tmp_path):
    folder = SHOP / f"week_{week}"
    columns = Columns(ad_text=("title",), clicks_weight="clicks", edges_anchor="category")
    tables = UserTables(
        str(folder / "clicks.csv"),
        ads=str(folder / "catalogue.csv"),
        ad_edges={"categories": str(folder / "catalogue.csv")},
        columns=columns,
    )
    dataset = import_tables(tables, tmp_path / "week")
    assert errors_in(dataset) == []
    with (folder / "catalogue.csv").open() as file:
        assert dataset.num_rows("ads") == len({row["ad_id"] for row in csv.DictReader(file)})


def test_what_is_shown_and_clicked_is_drawn_of_what_answers_and_what_attracts(tmp_path):
    drawn = shop_shown.ShownShop(searches=400)
    assert drawn.log == shop_shown.ShownShop(searches=400).log
    views = [0] * 10
    clicks = {}
    for (query, number, position), seen in drawn.log.items():
        views[position - 1] += seen
        product = drawn.catalogue[number]
        clicked = drawn.clicks[query, number, position]
        assert 0 <= clicked <= seen
        is_bait = product.title.endswith(shop_shown.BAIT)
        is_bad = shop_shown.grade_of(drawn.needs[query], product) < 0.5
        counts = clicks.setdefault((is_bait, is_bad), [0, 0])
        counts[0] += clicked
        counts[1] += seen
    assert views == [400] * 10
    rate = {kind: clicked / seen for kind, (clicked, seen) in clicks.items()}
    assert rate[True, True] > 3 * rate[False, True]
    assert rate[False, False] > 2 * rate[False, True]
    drawn.write(tmp_path)
    columns = Columns(
        ad_text=("title",),
        clicks_weight="clicks",
        clicks_views="views",
        clicks_position="position",
    )
    tables = UserTables(
        str(tmp_path / "log.csv"),
        ads=str(tmp_path / "catalogue.csv"),
        columns=columns,
        weights="coec",
    )
    assert errors_in(import_tables(tables, tmp_path / "shown")) == []
