"""Compile a retriever's encoder, and check that it answers faster and as well as before."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen_ray.method.metrics.comparison import Difference, in_points, paired_differences
from ramen_ray.method.metrics.ranking import ratio
from ramen_ray.method.retrieval.retriever_folder import compile_retriever
from ramen_ray.orchestration.serve.comparing import Answering, open_test_queries
from ramen_ray.orchestration.serve.retrievers import log_copy, take_place
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import Run

EXAMPLE_QUERIES = 2
TIMED_QUERIES, UNTIMED_QUERIES = 200, 10
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
    more than noise. Artifacts go into ``output`` if no server keeps them. See
    :func:`~ramen_ray.orchestration.serve.retrievers.take_place`.

    Raises:
        EncoderError: the encoder is a bag, or the packages for compiling are not installed.
        RegistryError, TrackingError: there is no such retriever, or its alias was moved meanwhile.
        DatasetError: the dataset that it was trained on is missing, or has changed since.
    """
    original = registry.look_up(model_uri)
    dataset, (texts, judgement) = open_test_queries(registry, original)
    with tempfile.TemporaryDirectory() as aside:
        folder = registry.download(original.uri, Path(aside))
        compile_retriever(folder, int8)
        example = texts[:EXAMPLE_QUERIES]
        changes = {"compiled": "int8" if int8 else "float32"}
        copy = log_copy(registry, original, folder, example, changes, output)
    after, before = (registry.load(one.uri, "cpu") for one in (copy, original))
    both = [Answering(copy, after), Answering(original, before)]
    answers, answers_before = (
        one.retrieve(texts, judgement.depth, one.ads_of_rows(dataset)) for one in both
    )
    ours, base = (judgement.measure(topk) for topk in (answers, answers_before))
    timed = texts[:TIMED_QUERIES]
    milliseconds, milliseconds_before = time_alone((after, before), timed)
    compiled = Compiled(
        copy.uri,
        milliseconds,
        milliseconds_before,
        _largest_difference(answers[1], answers_before[1]),
        {name: ratio(values) for name, values in ours.items()},
        paired_differences(ours, base),
    )
    found = {f"test/{name}": value for name, value in compiled.metrics.items()}
    found |= {"answer/milliseconds": compiled.milliseconds}
    Run(registry.uri, copy.run_id).log_metrics(found, model_id=copy.model_id)
    metric = registry.parameters(original.run_id)["training.selection_metric"]
    refusal = _refusal(compiled, metric, int8)
    if refusal:
        return replace(compiled, refusal=refusal)
    return replace(compiled, model_uri=take_place(registry, copy, original, model_uri))


def _largest_difference(ours: NDArray[np.float32], base: NDArray[np.float32]) -> float:
    """Compare scores (queries, k) rank by rank; a missing score counts as 0."""
    shown, shown_base = (np.where(np.isfinite(scores), scores, 0) for scores in (ours, base))
    return float(np.abs(shown - shown_base).max())


def _refusal(compiled: Compiled, metric: str, int8: bool) -> str | None:
    if compiled.milliseconds >= compiled.milliseconds_before:
        return "it is not faster"
    if not int8 and compiled.score_difference > TOLERANCE:
        return f"its scores differ by up to {compiled.score_difference:.4f}"
    difference = compiled.differences[metric]
    return f"it costs {metric} {in_points(difference)}" if difference.high < 0 else None


def time_alone(models: Sequence[Any], texts: Sequence[str]) -> list[float]:
    """Return each model's median time for a single query, in milliseconds."""
    # The first are not timed. Models take turns, so that a busy machine slows all of them.
    timed_texts = [*texts[:UNTIMED_QUERIES], *texts]
    seconds = np.empty((len(timed_texts), len(models)))
    for row, text in zip(seconds, timed_texts, strict=True):
        for column, model in enumerate(models):
            started = time.perf_counter()
            model.predict([text])
            row[column] = time.perf_counter() - started
    timed = seconds[len(timed_texts) - len(texts) :]
    return [1000 * float(median) for median in np.median(timed, axis=0)]
