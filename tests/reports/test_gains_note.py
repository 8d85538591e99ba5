"""Notes below tables."""

from ramen_ray.reports.tables import gains_note


def test_a_graph_that_changed_nothing_is_told() -> None:
    gains = {
        "unidec over in_batch": {"P@1": (0.04, 0.01, 0.07), "R@10": (0.0, 0.0, 0.0)},
        "unidec + graph over unidec": {"P@1": (0.0, 0.0, 0.0), "R@10": (0.0, 0.0, 0.0)},
    }
    assert gains_note(gains).endswith("has earned no pull: unidec + graph over unidec")
    assert "pull" not in gains_note({"unidec over in_batch": gains["unidec over in_batch"]})
