"""Find which part of the method helps: train bases, the whole, and it without each part."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramen_ray.bases import BaseName
from ramen_ray.config import (
    WITHOUT_GRAPH,
    ConfigError,
    RunConfig,
    flatten,
    overlay,
)
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.metrics.comparison import paired_differences_over_seeds
from ramen_ray.method.metrics.ranking import PerQuery
from ramen_ray.naming import joined_name
from ramen_ray.orchestration.evaluate import scores_of_run
from ramen_ray.orchestration.run.directory import RunDirectory, experiment_hash
from ramen_ray.orchestration.run.identity import identity_of
from ramen_ray.orchestration.run.inputs import check_config, prepared_data, resolved
from ramen_ray.orchestration.tune.choice import mean
from ramen_ray.orchestration.tune.finalists import (
    Repeated,
    choose_trained,
    directory_of,
    train_missing,
    unfinished,
    with_seeds,
)
from ramen_ray.orchestration.tune.settings import ABLATIONS, AblationConfig
from ramen_ray.orchestration.tune.trials import parent_run
from ramen_ray.presets import changes_to_only, lambdas, used_sets, with_base
from ramen_ray.reports.ablation_report import (
    TABLES_FILE,
    VariantFigures,
    verdict,
    write_ablation_report,
)
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
    config = resolved(config)
    dataset = Dataset(config.dataset)
    made_from = identity_of(config, dataset)
    variants = variants_of(config, ablation.bases)
    for variant in variants.values():
        check_config(variant.config, dataset)
    key = experiment_hash(config, dataset.fingerprint)
    name = config.name or joined_name(dataset.name, "ablation", key)
    directory = RunDirectory.of(config.output, name, ABLATIONS)
    seeds = range(config.seed, config.seed + ablation.seeds)

    runs = with_seeds({row: variant.config for row, variant in variants.items()}, seeds, name)
    # a call that is refused for its name leaves the MLflow run of that name as it is
    missing = unfinished(runs, made_from)
    with parent_run(directory, config, made_from) as run:
        settings = {name: str(value) for name, value in ablation.model_dump().items()}
        run.log_parameters(flatten(config), {"dataset": dataset.name, **settings})
        data = prepared_data(config, dataset)
        train_missing(missing, made_from, directory, run)
        figures = _compare(variants, runs, data)
        whole = f"{config.base.kind}-ramen"
        default = whole if whole in runs else list(runs)[1]
        choice = choose_trained(runs, data, dataset, default)
        sentences = [*verdict(figures), *choice.sentences]
        report = directory.path / "report"
        write_ablation_report(report, figures, sentences)
        run.log_artifacts(report)
        run.describe((report / TABLES_FILE).read_text())
        for row, reached in figures.items():
            seconds = {"seconds_ratio": reached.seconds_ratio}
            run.log_metrics(prefixed(f"{row}/", {**reached.means, **seconds}))
        chosen = overlay(variants[choice.chosen].config, {"name": None})
        return AblationResult(figures, sentences, chosen, report, run)


def _compare(
    variants: Mapping[str, Variant], runs: Repeated, data: Prepared
) -> dict[str, VariantFigures]:
    scores = {name: [_scores(run, data) for run in runs[name]] for name in runs}
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


def _scores(run: RunConfig, data: Prepared) -> dict[str, PerQuery]:
    scores = scores_of_run(directory_of(run).path, run, data, "test")
    return {name: scores[name] for name in MEASURED}
