"""Tables of metrics and of gains, and the notes below them."""

from ramen_ray.reports.report_tables import gains_note, metrics_table


def test_the_table_is_in_per_cent_by_split_and_row():
    names = ("P@1", "P@3", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "R@100")
    metrics = {
        row: {"test": dict.fromkeys(names, value)}
        for row, value in (("untrained", 0.125), ("trained", 0.5))
    }
    table = metrics_table(metrics)
    assert [row[1:3] for row in table.rows] == [["untrained", "12.50"], ["trained", "50.00"]]


def test_a_graph_that_changed_nothing_is_told():
    gains = {
        "unidec over in_batch": {"P@1": (0.04, 0.01, 0.07), "R@10": (0.0, 0.0, 0.0)},
        "unidec + graph over unidec": {"P@1": (0.0, 0.0, 0.0), "R@10": (0.0, 0.0, 0.0)},
    }
    assert gains_note(gains).endswith("has earned no pull: unidec + graph over unidec")
    assert "pull" not in gains_note({"unidec over in_batch": gains["unidec over in_batch"]})
