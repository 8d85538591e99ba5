"""Many runs as Ray Tune trials, as many at once as the cluster holds."""

import logging
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial

from ramen_ray.config import RunConfig, WorkersConfig
from ramen_ray.data.dataset import Dataset
from ramen_ray.orchestration.pipeline import prepare
from ramen_ray.orchestration.train import encoder_tokenizer, fit, graph_of

logger = logging.getLogger(__name__)

ON_HEAD = {"node:__internal_head__": 0.001}  # a trial only waits for its workers: no CPU is held
TOLD = ("P@1", "R@10")


def run_trials(
    configs: Mapping[str, RunConfig], parent_run_id: str, folder: Path
) -> dict[str, str]:
    """Train every configuration with :func:`fit`, as parts of one MLflow run.

    A run that fails is told of, and the others go on.

    Args:
        configs: by the name of the trial; paths are absolute, all ask for the same workers.
        parent_run_id: the MLflow run that all are part of.
        folder: where Tune keeps its own files meanwhile; several machines all see it.

    Returns:
        The errors, in one line each, by the name of the trial that failed.
    """
    if not configs:
        return {}
    _prepare_inputs(configs.values())
    workers = next(iter(configs.values())).workers
    progress = _Progress(len(configs))
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the progress below tells enough
    with (
        tempfile.TemporaryDirectory(prefix=".tune-", dir=folder) as storage,
        redirect_stdout(StringIO()),
    ):
        tune.Tuner(
            tune.with_resources(
                tune.with_parameters(_train, configs=dict(configs), parent_run_id=parent_run_id),
                tune.PlacementGroupFactory([ON_HEAD]),
            ),
            param_space={"trial": tune.grid_search(list(configs))},
            tune_config=tune.TuneConfig(
                max_concurrent_trials=num_at_once(workers),
                trial_name_creator=_name_of,
                trial_dirname_creator=_name_of,
            ),
            run_config=tune.RunConfig(
                name="trials", storage_path=storage, callbacks=[progress], verbose=0
            ),
        ).fit()
    if progress.num_done < len(configs):
        raise KeyboardInterrupt  # which Tune takes for a pause
    return progress.errors


def _prepare_inputs(configs: Iterable[RunConfig]) -> None:
    """Prepare all data and walk all graphs, each once; within a trial Ray Data lacks CPUs."""
    done = set()
    for config in configs:
        inputs = config.model_dump_json(include={"dataset", "encoder", "walk", "seed"})
        if inputs not in done:
            tokenizer = encoder_tokenizer(config.encoder)
            data = prepare(Dataset(config.dataset), Path(config.output) / "prepared", tokenizer)
            graph_of(config, data)
            done.add(inputs)


def num_at_once(workers: WorkersConfig) -> int:
    """Return how many runs of these workers the cluster holds at once; at least 1."""
    offered = ray.cluster_resources()
    held = [offered.get("CPU", 0) // (workers.num_workers * workers.cpus_per_worker)]
    if workers.use_gpu:
        held.append(offered.get("GPU", 0) // workers.num_workers)
    return max(int(min(held)), 1)


def _train(params: dict[str, Any], configs: Mapping[str, RunConfig], parent_run_id: str) -> None:
    started = time.monotonic()
    try:
        metrics = fit(configs[params["trial"]], parent_run_id).metrics["trained"]["test"]
    except Exception as error:
        tune.report({"error": str(error).strip().splitlines()[-1] or type(error).__name__})
        return
    told = ", ".join(f"{name} {100 * metrics[name]:.2f}" for name in TOLD)
    tune.report({"told": f"test {told} ({time.monotonic() - started:.0f} s)"})


def _name_of(trial: Trial) -> str:
    return str(trial.config["trial"])


class _Progress(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Tells of each trial that ends, and keeps the errors."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.num_done = 0
        self.errors: dict[str, str] = {}

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._tell(trial, trial.last_result.get("error"), trial.last_result.get("told", ""))

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        self._tell(trial, "its process died")

    def _tell(self, trial: Trial, error: str | None, told: str = "") -> None:
        name = _name_of(trial)
        self.num_done += 1
        if error is not None:
            self.errors[name] = error
            told = f"failed: {error}"
        logger.info("%d/%d %s: %s", self.num_done, self.total, name, told)
