"""Find which part of the method helps: train bases, the whole, and it without each part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.bases import BaseName
from ramen_ray.config import WITHOUT_GRAPH, ConfigError, RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds
from ramen_ray.orchestration.run.identity import Inputs
from ramen_ray.orchestration.run.inputs import check_config, prepared_data
from ramen_ray.orchestration.tune.choice import (
    Repeated,
    choose_trained,
    directory_of,
    mean,
    scores_of,
    train_missing,
    with_seeds,
)
from ramen_ray.orchestration.tune.experiment import open_experiment
from ramen_ray.orchestration.tune.settings import ABLATIONS, AblationConfig
from ramen_ray.presets import changes_to_only, lambdas, used_sets, with_base
from ramen_ray.reports.ablation_report import VariantFigures, ablation_tables, verdict
from ramen_ray.tracking.runs import Run, prefixed

MEASURED = ("P@1", "P@5", "N@5", "PSP@1", "PSP@5", "R@10", "tail/P@1", "tail/R@10")


@dataclass(frozen=True)
class Variant:
    """One row of the comparison; the first base is compared with itself."""

    base: str
    config: RunConfig


def variants_of(config: RunConfig, bases: tuple[BaseName, ...] = ()) -> dict[str, Variant]:
    """Return the variants of ``config`` by name: those of the paper's Tables 6 and 8, and more.

    Each base has the constants of its loss. Only parts that ``config`` uses are removed: without
    pruning there is no ``no-pruning``. Raises a ConfigError if ``config`` uses no graph.
    """
    if not used_sets(config):
        raise ConfigError("all of regularization.lambda_x and lambda_z are 0: no graph is used")
    bases = bases or tuple(dict.fromkeys((config.base.kind, "unidec", "in_batch")))[:2]
    first: str = bases[0]
    variants: dict[str, Variant] = {}
    for base in bases:
        whole = with_base(config, {"base.kind": base})
        variants[base] = Variant(first, overlay(whole, WITHOUT_GRAPH))
        variants[f"{base}-ramen"] = Variant(base, whole)
    whole = variants[f"{first}-ramen"].config
    for part, changes in _parts(whole).items():
        variants[f"{first}-ramen-{part}"] = Variant(first, overlay(whole, changes))
    return variants


def _parts(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Return the changes that remove a part of the method, or keep only one anchor set."""
    sides = lambdas(config)
    is_adaptive = config.regularization.adaptive
    parts: dict[str, dict[str, Any]] = {}
    if config.pruning.mode != "never":
        parts["no-pruning"] = {"pruning.mode": "never"}
    if config.walk.enabled:
        parts["no-walk"] = {"walk.enabled": False}
    if all(sides.values()):
        parts["no-query-graph"] = {"regularization.lambda_x": {}}
        parts["no-ad-graph"] = {"regularization.lambda_z": {}}
    name = "fixed-lambda" if is_adaptive else "adaptive-lambda"
    parts[name] = {"regularization.adaptive": not is_adaptive}
    names = used_sets(config)
    for kept in names if len(names) > 1 else ():
        parts[f"only-{kept}"] = changes_to_only(config, kept)
    return parts


@dataclass(frozen=True)
class AblationResult:
    """The test figures of each variant, by its name, and the folder of the tables."""

    variants: dict[str, VariantFigures]
    sentences: list[str]  # what the figures say, and what to train
    config: RunConfig  # of the variant that validation chose, by default the one given
    report: Path
    run: Run


def ablate(config: RunConfig, ablation: AblationConfig) -> AblationResult:
    """Train the missing runs of all variants and seeds, and compare them on the test split.

    All runs have one parent in MLflow, which gets the tables. Every variant is measured
    with the popularity and test clicks of the dataset itself.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, TrackingError: the input, the store
            or the cluster is not usable; nothing has been trained.
        RunError: some runs failed; the same call keeps the others and tries these again. Or a
            finished run has a name of this ablation, but a different configuration or other data.
            Or another process runs it, or what runs are made from changes between them.
    """
    inputs = Inputs.of(config)
    config = inputs.config
    variants = variants_of(config, ablation.bases)
    for variant in variants.values():
        check_config(variant.config, inputs.dataset)
    with open_experiment(inputs, ABLATIONS, "ablation", ablation, {}) as experiment:
        run = experiment.run
        seeds = range(config.seed, config.seed + ablation.seeds)
        configs = {name: variant.config for name, variant in variants.items()}
        runs = with_seeds(experiment, configs, seeds)
        data = prepared_data(config, inputs.dataset)
        train_missing(experiment, runs)
        figures = _compare(variants, runs, data)
        whole = f"{config.base.kind}-ramen"
        default = whole if whole in runs else list(runs)[1]
        choice = choose_trained(experiment, runs, data, default)
        sentences = [*verdict(figures), *choice.sentences]
        experiment.publish(sentences, *ablation_tables(figures))
        for row, reached in figures.items():
            seconds = {"seconds_ratio": reached.seconds_ratio}
            run.log_metrics(prefixed(f"{row}/", {**reached.means, **seconds}))
        chosen = overlay(variants[choice.chosen].config, {"name": None})
        return AblationResult(figures, sentences, chosen, experiment.report, run)


def _compare(
    variants: Mapping[str, Variant], runs: Repeated, data: Prepared
) -> dict[str, VariantFigures]:
    scores = {
        name: [scores_of(run, data, "test", MEASURED) for run in of_variant]
        for name, of_variant in runs.items()
    }
    seconds = {name: _mean_seconds(of_variant) for name, of_variant in runs.items()}
    figures = {}
    for name, of_seeds in scores.items():
        base = variants[name].base
        figures[name] = VariantFigures(
            base=base,
            means={metric: mean(of_seeds, metric) for metric in MEASURED},
            gains={} if base == name else paired_differences_over_seeds(of_seeds, scores[base]),
            seconds_ratio=seconds[name] / seconds[base],
        )
    return figures


def _mean_seconds(runs: Sequence[RunConfig]) -> float:
    """Return the seconds of training and of waiting for background results, on average."""
    notes = [directory_of(run).notes for run in runs]
    return float(np.mean([each["trained_seconds"] + each["waited_seconds"] for each in notes]))
