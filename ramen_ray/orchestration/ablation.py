"""Which part of the method helps here: train all arms with all seeds, and compare them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen_ray.config import RunConfig, experiment_hash, overlay
from ramen_ray.data.dataset import Dataset
from ramen_ray.data.prepared import Prepared
from ramen_ray.data.propagation import PropagationSettings, propagate_clicks
from ramen_ray.method.comparison import mean_over_seeds, paired_differences
from ramen_ray.method.evaluation import Propensity, score_queries
from ramen_ray.method.metrics import PerQuery, ratio
from ramen_ray.orchestration.arms import AblationConfig, Arm, arms_of
from ramen_ray.orchestration.cluster import check_resources, start_ray
from ramen_ray.orchestration.final_evaluation import TEST_ADS_FILE
from ramen_ray.orchestration.pipeline import prepare
from ramen_ray.orchestration.run_directory import RunDirectory, RunError
from ramen_ray.orchestration.train import check_config, with_absolute_paths
from ramen_ray.orchestration.trials import run_trials
from ramen_ray.tracking.ablation_report import ArmFigures, write_ablation_report
from ramen_ray.tracking.runs import (
    closing_run,
    log_artifacts,
    log_metrics,
    log_parameters,
    open_run,
    tracking_uri,
)

METRICS = ("P@1", "P@3", "P@5", "N@3", "N@5", "PSP@1", "PSP@5", "R@10")
MEASURED = (*METRICS, *(f"tail/{name}" for name in METRICS))


@dataclass(frozen=True)
class AblationResult:
    """What an ablation leaves behind.

    Attributes:
        arms: the figures of each arm, by its name.
        report: folder of the tables and plots.
        tracking_uri: the MLflow store.
        mlflow_run_id: the run in it that all others are part of.
    """

    arms: dict[str, ArmFigures]
    report: Path
    tracking_uri: str
    mlflow_run_id: str


def ablate(config: RunConfig, ablation: AblationConfig) -> AblationResult:
    """Train what is missing of all arms with all seeds, and compare them on the test split.

    All runs are parts of one MLflow run, which gets the tables and plots. Popularity and test
    clicks are those of the dataset itself for every arm.

    Raises:
        DatasetError, EncoderError, ConfigError, ClusterError, TrackingError: the input, the store
            or the cluster is not usable; nothing has been trained.
        RunError: some runs failed; the others are kept, and the same call tries these again.
    """
    config = with_absolute_paths(config)
    dataset, output = Dataset(config.dataset), Path(config.output)
    arms = arms_of(config, ablation.bases)
    for arm in arms.values():
        tokenizer = check_config(overlay(config, arm.changes), dataset)
    name = f"{dataset.name}-ablation-{experiment_hash(config, dataset.fingerprint)}"
    directory = RunDirectory(output / "ablations" / (config.name or name))
    directory.path.mkdir(parents=True, exist_ok=True)
    start_ray(show_workers=False)
    check_resources(config.workers)
    data = prepare(dataset, output / "prepared", tokenizer)
    propagated = _propagated(dataset, directory.path / "propagated")
    prepare(Dataset(propagated), output / "prepared", tokenizer)
    uri = tracking_uri(output)
    known = directory.facts.get("mlflow_run_id")
    run_id = open_run(uri, config.experiment, directory.name, output, known)
    directory.note(mlflow_run_id=run_id)
    log_parameters(uri, run_id, ablation.model_dump(), {"dataset": dataset.name})
    with closing_run(uri, run_id):
        seeds = range(config.seed, config.seed + ablation.seeds)
        runs = {
            arm_name: [
                _run_config(config, arm, seed, f"{directory.name}-{arm_name}", propagated)
                for seed in seeds
            ]
            for arm_name, arm in arms.items()
        }
        _train(runs, run_id, directory.path)
        figures = _compare(arms, runs, data)
        report = directory.path / "report"
        write_ablation_report(report, figures)
        log_artifacts(uri, run_id, report)
        for arm_name, of_arm in figures.items():
            named = {f"{arm_name}/{metric}": mean for metric, mean in of_arm.means.items()}
            log_metrics(uri, run_id, named)
    return AblationResult(figures, report, uri, run_id)


def _propagated(dataset: Dataset, folder: Path) -> Path:
    """Return the dataset directory of AugGT, made if it is not there."""
    if not folder.is_dir():
        propagate_clicks(dataset.path, folder, PropagationSettings())
    return folder


def _run_config(config: RunConfig, arm: Arm, seed: int, stem: str, propagated: Path) -> RunConfig:
    where = {"dataset": str(propagated)} if arm.propagated else {}
    return overlay(config, {**arm.changes, **where, "seed": seed, "name": f"{stem}-seed{seed}"})


def _train(runs: Mapping[str, list[RunConfig]], run_id: str, folder: Path) -> None:
    """Train the runs that are not finished."""
    missing = {
        str(run.name): run
        for of_arm in runs.values()
        for run in of_arm
        if not _directory(run).facts.get("finished")
    }
    errors = run_trials(missing, run_id, folder)
    if errors:
        told = "\n".join(f"  {name}: {error}" for name, error in errors.items())
        raise RunError(f"{len(errors)} of {len(missing)} runs failed:\n{told}")


def _compare(
    arms: Mapping[str, Arm], runs: Mapping[str, list[RunConfig]], data: Prepared
) -> dict[str, ArmFigures]:
    scores = {name: [_scores(run, data) for run in of_arm] for name, of_arm in runs.items()}
    means = {name: mean_over_seeds(of_arm) for name, of_arm in scores.items()}
    seconds = {
        name: float(np.mean([_directory(run).facts["trained_seconds"] for run in of_arm]))
        for name, of_arm in runs.items()
    }
    figures = {}
    for name, arm in arms.items():
        by_seed = {
            metric: [ratio(of_run[metric]) for of_run in scores[name]] for metric in MEASURED
        }
        figures[name] = ArmFigures(
            means={metric: float(np.mean(values)) for metric, values in by_seed.items()},
            deviations={metric: _deviation(values) for metric, values in by_seed.items()},
            less_base=(
                {} if arm.base == name else paired_differences(means[name], means[arm.base])
            ),
            seconds_ratio=seconds[name] / seconds[arm.base],
        )
    return figures


def _scores(run: RunConfig, data: Prepared) -> dict[str, PerQuery]:
    ads = np.load(_directory(run).path / TEST_ADS_FILE)
    evaluation = run.evaluation
    propensity = Propensity(evaluation.propensity_a, evaluation.propensity_b)
    scores = score_queries(ads, data, "test", propensity)
    return {name: scores[name] for name in MEASURED}


def _deviation(values: list[float]) -> float:
    """Return the standard deviation over the seeds; 0 for one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _directory(run: RunConfig) -> RunDirectory:
    return RunDirectory(Path(run.output) / "runs" / str(run.name))
