r"""Add an anchor set, made from a log, from texts or from your own edges, to a dataset directory.

Examples:
    python jobs/graph.py co-session datasets/mine --sessions "logs/2024-*.csv"
    python jobs/graph.py similar datasets/mine
    python jobs/graph.py similar datasets/mine \
        --name near --encoder outputs/runs/NAME/checkpoint_000000210/encoder
    python jobs/graph.py edges datasets/mine --name links --query-edges links.csv
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ramen_ray.command_line import parse_call, run_job, train_command
from ramen_ray.data.graphs.edge_lists import EdgeList, add_edge_list
from ramen_ray.data.graphs.sessions import SessionLog, SessionSettings
from ramen_ray.method.graph.similar import SimilarSettings, add_similar
from ramen_ray.orchestration.preparation.sessions import add_co_session

Directory = Annotated[
    Positional[Path], arg(metavar="DATASET", help="Dataset directory that the set is added to.")
]
Name = Annotated[str, arg(help="What to call the anchor set.")]
Added = tuple[Path, dict[str, int]]
Replace = Annotated[bool, arg(help="Replace an anchor set of that name.")]


def co_session(
    dataset: Directory, log: SessionLog, settings: SessionSettings, replace: Replace = False
) -> Added:
    """Tie queries asked, and ads clicked, in the same sessions; held-out queries stay out."""
    return dataset, add_co_session(dataset, log, settings, replace)


def similar(
    dataset: Directory, settings: SimilarSettings, name: Name = "similar", replace: Replace = False
) -> Added:
    """Tie train queries and ads to the texts of others that are most similar."""
    return dataset, add_similar(dataset, name, settings, replace)


def edges(dataset: Directory, name: Name, edge_list: EdgeList, replace: Replace = False) -> Added:
    """Bring in edges of your own."""
    return dataset, add_edge_list(dataset, name, edge_list, replace)


MAKERS: dict[str, Callable[..., Added]] = {
    "co-session": co_session,
    "similar": similar,
    "edges": edges,
}


def main() -> None:
    """Make the anchor set that the command line asks for and say what was made."""
    make = parse_call(MAKERS, __doc__ or "", (OmitArgPrefixes,))
    dataset, counts = make()
    for what, count in counts.items():
        print(f"{count:>12,}  {what}")
    written = [what for what, count in counts.items() if count]
    print(f"added to {dataset}; train with it: {train_command(dataset, written)}")


if __name__ == "__main__":
    sys.exit(run_job(main))
