r"""Add an anchor set, made from a log, from texts or from your own edges, to a dataset directory.

Or remove one.

Examples:
    python jobs/graph.py co-session datasets/mine --sessions "logs/2024-*.csv"
    python jobs/graph.py similar datasets/mine
    python jobs/graph.py similar datasets/mine \
        --name near --encoder outputs/runs/NAME/checkpoint_000000210/encoder
    python jobs/graph.py edges datasets/mine --name links --query-edges links.csv
    python jobs/graph.py edges datasets/mine --name raw --query-edges links.csv \
        --protocol as-published
    python jobs/graph.py remove datasets/mine --name raw
"""

from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ramen_ray.command_line import parse_settings, run_job
from ramen_ray.config import GB_PER_SHARD, PositiveFloat, Section
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.tables.graphs.anchor_sets import remove_anchor_set
from ramen_ray.data.tables.graphs.edges import EdgeList, add_edge_list
from ramen_ray.data.tables.graphs.session_events import SessionLog
from ramen_ray.data.tables.graphs.sessions import SessionSettings, add_co_session
from ramen_ray.long_work import logged_progress
from ramen_ray.method.graph.similar import SimilarSettings
from ramen_ray.printed_commands import training_on


class NewAnchorSet(Section):
    """What all anchor sets have in common."""

    dataset: Annotated[Positional[Path], arg(metavar="DATASET")]
    """Dataset directory that the set is added to."""
    replace: bool = False
    """Replace an anchor set of the same name."""


class FromTables(NewAnchorSet):
    """What sets from a user's tables have in common."""

    memory: str | None = None
    """Memory that tables may take, such as 4GB; what does not fit goes to disk, beside the set.
    By default 60 % of the machine's."""


class CoSession(FromTables):
    """Link queries searched, and ads clicked, in the same sessions, without held-out queries."""

    log: Annotated[SessionLog, arg(name="")]
    settings: OmitArgPrefixes[SessionSettings]

    def add(self) -> dict[str, int]:
        """Count the log's sessions and add two sets."""
        return add_co_session(self.dataset, self.log, self.settings, self.replace, self.memory)


class Similar(NewAnchorSet):
    """Link train queries and ads to the most similar texts of others."""

    settings: OmitArgPrefixes[SimilarSettings]
    name: str = "similar"
    """What to call the anchor set."""
    gb_per_shard: PositiveFloat = GB_PER_SHARD
    """GB of embeddings that one process searches; more are cut into shards, a process each."""

    def add(self) -> dict[str, int]:
        """Compare the texts and add the set."""
        Dataset(self.dataset)  # or a DatasetError, before what takes seconds
        with logged_progress("loading libraries"):
            from ramen_ray.orchestration.prepare.similar_set import add_similar
        return add_similar(self.dataset, self.name, self.settings, self.replace, self.gb_per_shard)


class Edges(FromTables):
    """Import edges of your own."""

    name: str
    """What to call the anchor set."""
    edge_list: Annotated[EdgeList, arg(name="")]

    def add(self) -> dict[str, int]:
        """Read the edges and add the set."""
        return add_edge_list(self.dataset, self.name, self.edge_list, self.replace, self.memory)


class Remove(Section):
    """Remove an anchor set."""

    dataset: Annotated[Positional[Path], arg(metavar="DATASET")]
    """Dataset directory that has the set."""
    name: str
    """The set's name."""


ANCHOR_SETS: dict[str, type[CoSession | Similar | Edges | Remove]] = {
    "co-session": CoSession,
    "similar": Similar,
    "edges": Edges,
    "remove": Remove,
}


def main() -> None:
    """Make or remove the anchor set that the command line names, and print what was made."""
    settings = parse_settings(ANCHOR_SETS, __doc__)
    if isinstance(settings, Remove):
        remove_anchor_set(Dataset(settings.dataset).path, settings.name)
        print(f"removed {settings.name} from {settings.dataset}")
        return
    counts = settings.add()
    written = [what for what, count in counts.items() if count]
    for what in written:
        print(f"{counts[what]:>12,}  {what}")
    print(f"added to {settings.dataset}; train with it: {training_on(settings.dataset, written)}")


if __name__ == "__main__":
    run_job(main)
