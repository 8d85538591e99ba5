"""Tables of metrics and of gains, and the notes below them."""

from ramen_ray.reports.report_tables import metrics_table, unearned_note, worse_note


def test_the_table_is_in_per_cent_by_split_and_row():
    names = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
    metrics = {
        row: {"test": dict.fromkeys(names, value)}
        for row, value in (("untrained", 0.125), ("trained", 0.5))
    }
    table = metrics_table(metrics)
    assert [row[1:3] for row in table.rows] == [["untrained", "12.50"], ["trained", "50.00"]]
    metrics["trained"]["test"] |= {"bad@1": 0.25}
    judged = metrics_table(metrics)
    place = judged.columns.index("bad@1")
    assert [row[place] for row in judged.rows] == ["–", "25.00"]
    assert "bad@1" not in table.columns


def test_a_graph_that_has_never_pulled_is_named():
    weights = {"lambda_z/links": ([1, 2], [0.0, 0.3]), "lambda_z/co_click": ([1, 2], [0.0, 0.0])}
    assert unearned_note(weights) == "lambda_z/co_click: earned no weight, not used"
    assert not unearned_note({"lambda_z/links": weights["lambda_z/links"]})


def test_a_training_that_ends_below_its_start_or_its_base_is_named():
    rows = {
        "start: first": {"validation": {"P@1": 0.3, "R@10": 0.4}},
        "in_batch": {"validation": {"P@1": 0.1, "R@10": 0.6}},
        "unidec": {"validation": {"P@1": 0.2, "R@10": 0.5}},
    }
    assert "start: first" in worse_note(rows, "P@1")
    assert "in_batch" in worse_note(rows, "R@10")
    del rows["in_batch"]
    assert not worse_note(rows, "R@10")
