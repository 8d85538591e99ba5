"""A combiner's table: its ad vectors compared with texts alone."""

from collections.abc import Mapping

from rich.table import Table

TABLE_METRICS = ("P@1", "P@5", "N@5", "R@10", "R@100")

Metrics = Mapping[str, Mapping[str, Mapping[str, float]]]
Differences = Mapping[str, Mapping[str, Mapping[str, tuple[float, float, float]]]]


def combiner_table(metrics: Metrics, differences: Differences) -> Table:
    """Return a table in per cent.

    Args:
        metrics: by row, split and name.
        differences: by how much a row exceeds texts alone, with the bounds of an interval.
    """
    table = Table("split", "ads by", *TABLE_METRICS, "R@10 minus text alone")
    splits = list(dict.fromkeys(split for by_split in metrics.values() for split in by_split))
    for split in splits:
        for row, by_split in metrics.items():
            values = [f"{100 * by_split[split][name]:.2f}" for name in TABLE_METRICS]
            less_text = ""
            if row in differences:
                by, low, high = differences[row][split]["R@10"]
                less_text = f"{100 * by:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
            table.add_row(split, row, *values, less_text)
    return table
