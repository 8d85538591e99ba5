"""The tables of evidence: rows that their commands make, and what is in a line."""

import numpy as np
import pytest
from support import evidence

from benchmarks import graph_price
from benchmarks.graph_gain import recipe, variants
from benchmarks.tables import compared, write


@pytest.mark.parametrize("dataset", ["foldoc", "debian", "rdocs"])
def test_all_rows_of_the_results_are_made_by_the_command(dataset):
    rows = [row for row in evidence("results") if row["dataset"] == dataset]
    made = {
        (name, over)
        for name, one in variants(recipe(dataset)).items()
        for over in one.over or ("",)
    }
    again = " (again)"  # a base that was measured anew, beside a later row
    named = {(one["variant"], one["over"].removesuffix(again)) for one in rows}
    assert {(name, over) for name, over in named if not name.endswith(again)} <= made


def test_all_rows_of_the_graphs_price_are_made_by_the_command():
    rows = [row for row in evidence("validation") if row["table"] == "cheaper graph"]
    assert rows
    assert {row["variant"] for row in rows} <= set(graph_price.rows())


def test_lines_have_per_cent_and_points_over_the_same_runs(tmp_path):
    ones = np.ones(50)
    runs = {name: [{"P@1": (np.full(50, hits), ones)}] for name, hits in (("a", 0.5), ("b", 0.75))}
    base = [*runs["a"], {"P@1": (np.zeros(50), ones)}]  # of a further seed
    lines = [*compared("shop", "a", runs["a"]), *compared("shop", "b", runs["b"], "a", base)]
    write("table", lines, str(tmp_path))
    assert (tmp_path / "table.csv").read_text().splitlines() == [
        "dataset,variant,over,runs,metric,percent,difference,low,high",
        "shop,a,,1,P@1,50.00,,,",
        "shop,b,a,1,P@1,75.00,+25.00,+25.00,+25.00",
    ]
