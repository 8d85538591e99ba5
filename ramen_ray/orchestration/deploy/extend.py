"""Change the ads of a retriever, without training; a combiner makes the vectors of new ones."""

from dataclasses import dataclass, replace
from pathlib import Path

from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.tables.new_ads import NewAds, read_changes
from ramen_ray.method.new_ads.representation import combiner_of
from ramen_ray.method.retrieval.retriever_folder import (
    add_ads,
    keep_ads,
    known_ads,
    write_ads,
)
from ramen_ray.orchestration.deploy.retrievers import log_copy, take_place
from ramen_ray.tracking.registry import Registry

EXAMPLE_ADS = 2


@dataclass(frozen=True)
class Extended:
    """A retriever with other ads."""

    model_uri: str  # models:/NAME/VERSION if the original was given by a name
    num_ads: int
    counts: dict[str, int]  # of ads, by what has become of them, in words

    def __str__(self) -> str:
        changes = [f"{count:,} {what}" for what, count in self.counts.items() if count]
        return f"{self.num_ads:,} ads: {', '.join(changes) or 'nothing to change'}"


def extend_retriever(registry: Registry, model_uri: str, given: NewAds, output: Path) -> Extended:
    """Log a copy of a retriever with other ads, and put it in the original's place.

    If nothing would change, there is no copy. See :func:`log_copy` and :func:`take_place`.

    Raises:
        DatasetError: a table cannot be read, or an id is in use.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
    """
    original = registry.look_up(model_uri)
    with owned_folder() as aside:
        folder = registry.download(original.uri, aside)
        known = known_ads(folder)
        changes = read_changes(given, known)
        new = changes.added
        num_gone = len(known) - len(changes.rows)
        extended = Extended(
            model_uri,
            len(changes.rows) + len(new),
            {
                "new": len(new) - changes.num_changed,
                "with another text": changes.num_changed,
                "with other values to filter by": changes.num_refiltered,
                "removed": num_gone - changes.num_changed,
                "to be removed were not there": changes.num_unknown,
            },
        )
        if not len(new) and not num_gone and not changes.num_refiltered:
            return extended
        if num_gone:
            keep_ads(folder, changes.rows)
        write_ads(folder, changes.kept)
        if len(new):
            combined = combiner_of(folder)
            add_ads(folder, new, combined.represent if combined else None)
        texts = known_ads(folder)["text"][-EXAMPLE_ADS:].to_pylist()
        sources = {"new_ads": given.ads, "removed_ads": given.remove, "all_ads": given.sync}
        made: dict[str, object] = {key: path for key, path in sources.items() if path is not None}
        made["num_ads"] = extended.num_ads
        copy = log_copy(registry, original, folder, texts, made, output)
    description = f"{extended}, since {original.uri}"
    uri = take_place(registry, copy, original, model_uri, description)
    return replace(extended, model_uri=uri)
