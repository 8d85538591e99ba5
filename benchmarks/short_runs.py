"""Seconds that a run of seconds in an ablation takes besides its steps, beside one by itself.

Runs of `bag-ramen` on foldoc, two epochs each, without walks and pruning, first as the trials of an
ablation, then each by itself, as `jobs/train.py` does. A run's seconds last from the
end of the run before it, and the steps' own are taken off. `ratio` is the middle trial over the
middle run by itself.

    python -m benchmarks.short_runs [--runs 6]
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.common import ENVIRONMENT, finish
from ramen_ray.config import RunConfig, overlay, with_absolute_paths
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.cluster.resources import start_ray
from ramen_ray.orchestration.runs.identity import identity_of
from ramen_ray.orchestration.runs.run_directory import RUN_FILE, RunDirectory
from ramen_ray.orchestration.training.run import fit, make_ready
from ramen_ray.orchestration.tune.trials import run_trials
from ramen_ray.presets import bag_ramen
from ramen_ray.tracking.runs import open_run, tracking_uri


def main() -> None:
    """Train on both sides, from data that are prepared."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=6)
    num_runs = parser.parse_args().runs
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        start_ray(show_workers=False)
        trials, alone = (_configs(folder, side, num_runs) for side in ("trial", "alone"))
        first = next(iter(trials.values()))
        make_ready(first)
        expected = {first.dataset: identity_of(first, Dataset(first.dataset))}
        output = Path(folder)
        parent = open_run(tracking_uri(output), "short runs", "trials", output)
        errors = run_trials(trials, parent, output, expected)
        assert not errors, errors
        for config in alone.values():
            fit(config)
        figures = {"trial": _besides_steps(trials), "by_itself": _besides_steps(alone)}
    middle = {side: median(seconds) for side, seconds in figures.items()}
    found = {f"{side}_s": seconds for side, seconds in figures.items()}
    finish(middle["trial"] / middle["by_itself"], {**found, "middle_s": middle})


def _configs(folder: str, side: str, num_runs: int) -> dict[str, RunConfig]:
    config = with_absolute_paths(bag_ramen("foldoc"))
    changes = {
        "base.kind": "in_batch",
        "training.epochs": 2,
        "walk.enabled": False,
        "pruning.mode": "never",
        "output": folder,
    }
    names = [f"{side}-{seed}" for seed in range(num_runs)]
    return {
        name: overlay(config, {**changes, "name": name, "seed": seed})
        for seed, name in enumerate(names)
    }


def _besides_steps(configs: Mapping[str, RunConfig]) -> list[float]:
    """Return the seconds of all runs but the first, without those of their steps."""
    runs = [RunDirectory.of(config.output, name) for name, config in configs.items()]
    ends = sorted(
        (((run.path / RUN_FILE).stat().st_mtime, run) for run in runs), key=lambda one: one[0]
    )
    return [
        end - before - run.notes["trained_seconds"] for (before, _), (end, run) in pairwise(ends)
    ]


if __name__ == "__main__":
    main()
