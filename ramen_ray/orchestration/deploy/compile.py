"""Compile a retriever's encoder for CPUs, and compare it with the original."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.store.made_folder import owned_folder
from ramen_ray.method.metrics.comparison import Difference, in_points, paired_differences
from ramen_ray.method.metrics.ranking import ratios
from ramen_ray.method.retrieval.retriever_folder import compile_retriever
from ramen_ray.orchestration.deploy.comparing import Answering, open_test_queries
from ramen_ray.orchestration.deploy.retrievers import log_copy, take_place
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import Run

EXAMPLE_QUERIES = 2
TIMED_QUERIES = 200
UNTIMED_QUERIES = 10
TOLERANCE = 1e-3


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
