"""What differs between what a run was made from and what is there now, in words."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ramen_ray.errors import shown_path

REMOVES = "python", "jobs/graph.py", "remove"
TABLES = "tables"
"""In what a run is made from: a digest of each table, which says what of the dataset differs."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe in one line which keys have different values now than before, and which tables."""
    values = [
        f"{key} ({before.get(key)!r} there, {now.get(key)!r} now)"
        for key in sorted({*before, *now} - {TABLES})
        if before.get(key) != now.get(key)
    ]
    kinds = _changed_tables(before, now)
    tables = [f"{', '.join(names)}: {kind}" for kind, names in kinds.items() if names]
    return "; ".join([*values, *tables] if values else [])


def removals(before: Mapping[str, Any], now: Mapping[str, Any], dataset: str | Path) -> str:
    """Return the commands that remove a dataset's new anchor sets, each in brackets."""
    new = _changed_tables(before, now)["new"]
    names = [table.removeprefix("anchors/") for table in new if table.startswith("anchors/")]
    commands = ([*REMOVES, shown_path(dataset), "--name", name] for name in names)
    return "".join(f" ({shlex.join(command)})" for command in commands)


def _changed_tables(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of the tables that are new, that differ, and that are gone, if noted."""
    if not before.get(TABLES) or not now.get(TABLES):
        return {"new": []}
    was, is_now = (
        dict(word.split(":") for word in identity[TABLES].split()) for identity in (before, now)
    )
    return {
        "new": sorted(is_now.keys() - was),
        "different": sorted(table for table in was.keys() & is_now if was[table] != is_now[table]),
        "gone": sorted(was.keys() - is_now),
    }
