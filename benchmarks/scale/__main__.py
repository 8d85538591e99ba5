"""Seconds and peak memory of every stage at growing sizes, from a user's tables to pruned graphs.

A size is a number of queries, with as many ads and anchors, 2 clicks a query, and, unless it says
otherwise (100000x20), 5 edges a node, so 10M queries have 100M edges; degrees follow power laws.
The stages of a size follow one another, each in a process of its own with Ray started before: start
of Ray, import of clicks, import of edges, validation, description, preparation, walks, training (a
bag, batch 1024, 20 steps), pruning, co-session graphs, similar texts (by a bag). Figures of each:
seconds, processor seconds, microseconds a row, peak memory of the driver with and without what it
shares, of Ray's processes without, and of Ray's store. With --unit-costs, the costs of the stages
are fitted too, and printed as ramen_ray/machines.toml has them, for jobs/plan.py: give at least
four sizes, one with more edges.
`ratio` is the training's queries per processor second at the largest size over the smallest.

    python -m benchmarks.scale [--sizes 100000 1000000 10000000] [--unit-costs]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import finish
from benchmarks.scale.fitting import COUNTED, as_toml, fit
from benchmarks.scale.generated import Shape
from benchmarks.scale.measuring import measure_size
from benchmarks.scale.stages import STAGES, Row

DEFAULT_EDGES = 5


def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["100000", "1000000", "10000000"])
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--unit-costs", action="store_true")
    options = parser.parse_args()
    rows: dict[str, dict[str, Row]] = {}
    for shape in map(_shape, options.sizes):
        with tempfile.TemporaryDirectory() as name:
            rows[str(shape)] = measure_size(shape, Path(name), options.stages)
    figures: dict[str, Any] = {"stages": rows}
    if options.unit_costs:
        most_queries = max(_shape(size).queries for size in options.sizes)
        for stage in COUNTED.keys() & set(options.stages):
            costs = fit(stage, [of_size[stage] for of_size in rows.values()])
            print(as_toml(stage, costs, most_queries))
    rates = [
        of_size["train"]["rows_per_processor_s"] for of_size in rows.values() if "train" in of_size
    ]
    finish(rates[-1] / rates[0] if rates else 0.0, figures)


def _shape(text: str) -> Shape:
    queries, _, edges = text.partition("x")
    return Shape(int(queries), int(edges or DEFAULT_EDGES))


if __name__ == "__main__":
    main()
