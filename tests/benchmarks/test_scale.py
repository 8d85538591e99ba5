"""Costs that are fitted to measured seconds."""

import tomllib

import pytest

from benchmarks.scale.__main__ import as_toml, fit


def test_fitted_costs_give_the_seconds_back():
    start, text, edge = 7.0, 3e-6, 2e-7
    rows = [
        {"texts": texts, "edges": edges, "seconds": start + text * texts + edge * edges}
        for texts, edges in ((3e4, 1e5), (3e5, 1e6), (3e5, 4e6), (3e6, 1e7))
    ]
    costs = fit("validate", rows)
    printed = tomllib.loads(as_toml("validate", costs, 10**6))["MACHINE"]["costs"]["validate"]
    assert printed.pop("source").startswith("benchmarks.scale")
    assert printed.pop("most_queries") == 10**6
    assert printed == pytest.approx({"start_s": start, "text_s": text, "edge_s": edge}, rel=1e-2)
