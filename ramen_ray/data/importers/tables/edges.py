"""Write the anchor sets, whose edges name queries and ads as the clicks do."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ramen_ray.data.graphs.edge_import import write_edge_list
from ramen_ray.data.graphs.edge_lists import Named
from ramen_ray.data.importers.tables.numbering import name_nodes
from ramen_ray.data.importers.tables.planning import TRAIN, Plan
from ramen_ray.data.importers.tables.settings import UserTables
from ramen_ray.data.store.dataset import DatasetWriter
from ramen_ray.data.tasks import RunTasks, one_after_another

LEFT_OUT = -1


def write_edges(
    folder: Path,
    name: str,
    tables: UserTables,
    writer: DatasetWriter,
    run: RunTasks = one_after_another,
) -> dict[str, int]:
    """Write the anchor set ``name``; ``run`` runs the tasks.

    Returns:
        Counts of the rows written, and of the edges left out or merged.

    Raises:
        DatasetError: rows are wrong (names each), or no edge is left.
    """
    edge_list = tables.edge_lists[name]
    namings = {
        side: partial(naming, folder=folder, tables=tables)
        for side, naming in (("query", _name_queries), ("ad", _name_ads))
        if side in edge_list.tables
    }
    found = write_edge_list(edge_list, name, namings, writer, run)
    return found.num_rows | found.counts


def _name_queries(cells: pa.StringArray, folder: Path, tables: UserTables) -> Named:
    plan = Plan.open(folder)
    known, numbers = name_nodes(cells, "queries", folder, tables)
    splits = plan.query_splits[numbers]
    is_train = splits == TRAIN
    left_out = {
        "validation and test queries": _marked(known[splits > TRAIN], len(cells)),
        "queries that the import left out": _marked(known[splits == LEFT_OUT], len(cells)),
    }
    return Named(known[is_train], plan.query_ids[numbers[is_train]], left_out)


def _name_ads(cells: pa.StringArray, folder: Path, tables: UserTables) -> Named:
    known, numbers = name_nodes(cells, "ads", folder, tables)
    ads = Plan.open(folder).ad_ids[numbers]
    left_out = {"ads that the import left out": _marked(known[ads == LEFT_OUT], len(cells))}
    return Named(known[ads != LEFT_OUT], ads[ads != LEFT_OUT], left_out)


def _marked(places: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    marks = np.zeros(length, dtype=bool)
    marks[places] = True
    return marks
