"""Changed copies of a retriever, made without training: with other ads, or a compiled encoder.

A copy takes its original's place in the registry; a combiner makes the vectors of new ads.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.data.tables.new_ads import NewAds, read_changes
from ramen_ray.method.metrics.comparison import Difference, in_points, paired_differences
from ramen_ray.method.metrics.ranking import ratios
from ramen_ray.method.new_ads.added_ads import representation_of
from ramen_ray.method.retrieval.retriever_folder import (
    add_ads,
    compile_retriever,
    keep_ads,
    known_ads,
    write_ads,
)
from ramen_ray.orchestration.deploy.promotion import Answering, open_test_queries
from ramen_ray.tracking.aliases import MovedError, give, holder_of
from ramen_ray.tracking.registry import (
    COPY_OF,
    LoggedRetriever,
    Registry,
    ask_once,
    uri_of,
)
from ramen_ray.tracking.retriever import log_retriever
from ramen_ray.tracking.runs import Run, open_run

EXAMPLE_ADS, EXAMPLE_QUERIES = 2, 2
TIMED_QUERIES, UNTIMED_QUERIES = 200, 10
TOLERANCE = 1e-3


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
        DatasetError: a table cannot be read, an id is in use, or a click is not on a new ad.
        NewAdsError: there are clicks, but the retriever has no combiner to use them.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
    """
    original = registry.look_up(model_uri)
    with owned_folder() as aside:
        folder = registry.download(original.uri, aside)
        known = known_ads(folder)
        changes = read_changes(given, known)
        new, num_gone = changes.added, len(known) - len(changes.rows)
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
        represent = representation_of(folder, new, given)
        if num_gone:
            keep_ads(folder, changes.rows)
        write_ads(folder, changes.kept)
        if len(new):
            add_ads(folder, new, represent)
        texts = known_ads(folder)["text"][-EXAMPLE_ADS:].to_pylist()
        sources = {"new_ads": given.ads, "removed_ads": given.remove, "all_ads": given.sync}
        made: dict[str, object] = {key: path for key, path in sources.items() if path is not None}
        made["num_ads"] = extended.num_ads
        copy = log_copy(registry, original, folder, texts, made, output)
    description = f"{extended}, since {original.uri}"
    uri = take_place(registry, copy, original, model_uri, description)
    return replace(extended, model_uri=uri)


@dataclass(frozen=True)
class Compiled:
    """A retriever with a compiled encoder, compared with the original on the test split."""

    model_uri: str  # models:/NAME/VERSION if the original was given by a name
    milliseconds: float  # median of a single query
    milliseconds_before: float
    score_difference: float  # the largest over all answers to the test queries
    metrics: dict[str, float]
    differences: dict[str, Difference]
    refusal: str | None = None  # why it does not replace the original


def compile_for_cpus(registry: Registry, model_uri: str, int8: bool, output: Path) -> Compiled:
    """Log a copy of a retriever with a compiled encoder; it replaces the original if it is better.

    It must be faster than the original, both on the CPU, and as good: the scores must agree within
    0.001 (not with 8-bit integers), and the selection metric on the test split must not be lower by
    more than noise. See :func:`log_copy` and :func:`take_place`.

    Raises:
        EncoderError: the encoder is a bag, or the packages for compiling are not installed.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
        DatasetError: the dataset that it was trained on is missing, or has changed since.
    """
    original = registry.look_up(model_uri)
    dataset, (texts, ground_truth) = open_test_queries(registry, original)
    with owned_folder() as aside:
        folder = registry.download(original.uri, aside)
        compile_retriever(folder, int8)
        example = texts[:EXAMPLE_QUERIES]
        changes = {"compiled": "int8" if int8 else "float32"}
        copy = log_copy(registry, original, folder, example, changes, output)
    after, before = (registry.load(logged.uri, "cpu") for logged in (copy, original))
    both = [Answering(copy, after), Answering(original, before)]
    answers, answers_before = (
        side.retrieve(texts, ground_truth.depth, side.ads_of_rows(dataset)) for side in both
    )
    ours, base = (ground_truth.measure(topk) for topk in (answers, answers_before))
    # rank by rank; a missing score counts as 0
    scores, scores_before = (
        np.where(np.isfinite(scored), scored, 0) for _, scored in (answers, answers_before)
    )
    timed = time_alone((after, before), texts[:TIMED_QUERIES])
    compiled = Compiled(
        copy.uri,
        milliseconds=timed[0],
        milliseconds_before=timed[1],
        score_difference=float(np.abs(scores - scores_before).max()),
        metrics=ratios(ours),
        differences=paired_differences(ours, base),
    )
    figures = {f"test/{name}": value for name, value in compiled.metrics.items()}
    figures |= {"answer/milliseconds": compiled.milliseconds}
    Run(registry.uri, copy.run_id).log_metrics(figures, model_id=copy.model_id)
    metric = registry.parameters(original.run_id)["training.selection_metric"]
    costs = compiled.differences[metric]
    if compiled.milliseconds >= compiled.milliseconds_before:
        return replace(compiled, refusal="it is not faster")
    if not int8 and compiled.score_difference > TOLERANCE:
        by = f"its scores differ by up to {compiled.score_difference:.4f}"
        return replace(compiled, refusal=by)
    if costs.high < 0:
        return replace(compiled, refusal=f"it costs {metric} {in_points(costs)}")
    text = f"{original.uri}, compiled to {changes['compiled']}"
    return replace(compiled, model_uri=take_place(registry, copy, original, model_uri, text))


def time_alone(models: Sequence[Retriever], texts: Sequence[str]) -> list[float]:
    """Return each model's median time for a single query, in milliseconds."""
    # The first are not timed. Models take turns, so that a busy machine slows all of them.
    timed_texts = [*texts[:UNTIMED_QUERIES], *texts]
    seconds = np.empty((len(timed_texts), len(models)))
    for row, text in zip(seconds, timed_texts, strict=True):
        for column, model in enumerate(models):
            started = time.perf_counter()
            model.answer([text])
            row[column] = time.perf_counter() - started
    timed = seconds[len(timed_texts) - len(texts) :]
    return [1000 * float(median) for median in np.median(timed, axis=0)]


def log_copy(
    registry: Registry,
    original: LoggedRetriever,
    folder: Path,
    example: list[str],
    changes: Mapping[str, Any],
    output: Path,
) -> LoggedRetriever:
    """Log the ``folder`` with a changed copy of a retriever, as a run of its own.

    It gets the parameters of the original's training, and ``changes`` of these and of the model's
    metadata. Artifacts go into ``output`` if no server keeps them.
    """
    parameters = {**registry.parameters(original.run_id), **changes}
    name = "-".join(
        [str(original.metadata.get("dataset", "copy")), *sorted({*changes} - {"num_ads"})]
    )
    run = open_run(registry.uri, parameters["experiment"], name, output)
    with run.closing():
        run.log_parameters(parameters, {COPY_OF: original.uri})
        metadata = {**original.metadata, **changes}
        model_id = log_retriever(run, folder, example, metadata)
    return registry.look_up(uri_of(model_id))


def take_place(
    registry: Registry,
    copy: LoggedRetriever,
    original: LoggedRetriever,
    model_uri: str,
    description: str,
) -> str:
    """Register a changed copy under its original's name, and move the named alias to it.

    The new version gets a ``description``, which the MLflow UI shows.
    A ``model_uri`` without a name (``models:/MODEL_ID``) registers nothing. Returns the copy's URI.
    Raises a RegistryError if the copy does not answer, and a MovedError, before anything is
    registered, if the alias is not the original's any more.
    """
    named = re.fullmatch(r"models:/([^/@]+)(?:@(.+)|/\d+)", model_uri)
    if named is None:
        return copy.uri
    name, alias = named.groups()
    ask_once(registry.load(copy.uri))
    if alias:
        holder = holder_of(registry, name, alias)
        if not holder.has_alias or registry.look_up(holder.uri).model_id != original.model_id:
            raise MovedError(name, alias)
        number = give(registry, alias, copy.run_id, copy.model_id, holder)
    else:
        number = registry.register(name, copy.run_id, copy.model_id)
    registry.describe(name, number, description)
    return f"models:/{name}/{number}"
