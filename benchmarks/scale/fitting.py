"""Unit costs of the stages, fitted to their seconds at several sizes.

All cores count, busy or not, since nobody else has them. Each stage is taken to cost a constant,
and something for each text and each edge; the relative errors are least. Sizes with different
numbers of edges per node tell texts from edges.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import nnls

Row = Mapping[str, float]
"""A stage's figures at one size, with its ``texts`` and ``edges``."""

UNITS = {
    "clicks": {"rows": "import_row_s"},
    "edges": {"texts": "edges_text_s", "edges": "edges_edge_s"},
    "validate": {"texts": "validate_text_s", "edges": "validate_edge_s"},
    "prepare": {"texts": "prepare_text_s", "edges": "prepare_edge_s"},
    "walk": {"rows": "walk_hop_s", "edges": "walk_edge_s"},
    "sessions": {"rows": "session_event_s"},
}


def fit(stage: str, rows: Sequence[Row], cores: int) -> dict[str, float]:
    """Return the unit costs of a stage on ``cores``, and its constant as ``start_s``."""
    units = UNITS[stage]
    features = np.array([[1.0, *(row[name] for name in units)] for row in rows])
    seconds = cores * np.array([row["seconds"] for row in rows])
    scale = features.max(axis=0)
    found, _ = nnls(features / scale / seconds[:, None], np.ones(len(rows)))
    names = [f"{stage}_start_s", *units.values()]
    return dict(zip(names, (found / scale).tolist(), strict=True))
