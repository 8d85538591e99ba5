"""Sweep over settings to find those that suit your data.

Examples:
    python jobs/tune.py --dataset path/to/mine --num-samples 20
    python jobs/tune.py bag-unidec --dataset debian --space optimizer --time-budget 3600
    python jobs/tune.py bag --space mining --base.kind ance --workers.cpus-per-worker 1
    python jobs/tune.py minilm --dataset path/to/mine --training.selection-metric R@10
    ray job submit --working-dir . -- python jobs/tune.py bag --output $PWD/outputs

Run the same command again to resume a sweep; with a higher --num-samples it gets more trials.
Spaces are functions in tune_spaces/.
"""

from typing import TYPE_CHECKING

from ramen_ray.command_line import parse_with_run_config, refuse_early, run_job
from ramen_ray.config import ConfigError
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.run.directory import deciding_settings
from ramen_ray.orchestration.tune.settings import OF_ONE_CALL, SWEEPS, SweepConfig
from ramen_ray.printed_commands import in_store, looking_at, training_command

if TYPE_CHECKING:
    from ramen_ray.reports.search_report import TrialRecord


def main() -> None:
    """Parse, sweep, and print the results and where to find them."""
    settings, config = parse_with_run_config(SweepConfig(), __doc__)
    plan = {**deciding_settings(config), **settings.model_dump(exclude=OF_ONE_CALL)}
    refuse_early(config, plan, SWEEPS)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.tune.sweep import sweep
        from tune_spaces import SPACES
    if settings.space not in SPACES:
        raise ConfigError(f"--space {settings.space}: there are only {', '.join(SPACES)}")
    result = sweep(config, settings, SPACES[settings.space], training_command)
    metric = config.training.selection_metric
    print(f"best first, by {metric} on the validation split:")
    for trial in result.trials[:5]:
        print(f"  {trial_line(trial, metric)}")
    for said in result.sentences:
        print(said)
    print(f"best:    {result.command}")
    print(looking_at(result.report, result.run))
    of_best = "jobs/promote.py", shown_path(result.report.parent), "--name", "NAME"
    print(f"next:    {in_store(config.output, *of_best)}")


def trial_line(trial: "TrialRecord", metric: str) -> str:
    """Describe in one line a trial's metric on validation, how it ended, and its name."""
    value = "none" if trial.value is None else f"{100 * trial.value:.2f}"
    return f"validation {metric} {value}; {trial.end}: {trial.name}"


if __name__ == "__main__":
    run_job(main)
