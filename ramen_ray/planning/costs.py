"""Unit costs: what one row, hop or operation costs, and where that figure comes from."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("unit_costs.toml")


@dataclass(frozen=True)
class UnitCost:
    """One figure of the table.

    Attributes:
        value: the figure.
        unit: what it counts.
        source: measured (with the command), a vendor's sheet, or assumed.
    """

    value: float
    unit: str
    source: str


@cache
def unit_costs() -> Mapping[str, UnitCost]:
    """Read the table that comes with this package."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {
        name: UnitCost(float(row["value"]), row["unit"], row["source"])
        for name, row in rows.items()
    }


def cost(name: str) -> float:
    """Return the value of a unit cost."""
    return unit_costs()[name].value
