r"""Find out whether the graph helps on your data, and which part of it.

Trains the bases, RAMEN on each of them, and RAMEN without each of its parts, with several seeds
each, and compares them on the same test queries.

Examples:
    python jobs/ablate.py --dataset path/to/mine
    python jobs/ablate.py bag --dataset debian --bases in_batch --seeds 1
    python jobs/ablate.py bag-ramen --bases ance depsl unidec
    python jobs/ablate.py --dataset path/to/mine --walk.enabled --pruning.mode synchronous \
        --pruning.warmup-epochs 6
    ray job submit --working-dir . -- python jobs/ablate.py minilm --output $PWD/outputs

Run the same command again to resume an interrupted comparison.
"""

from ramen_ray.command_line import parse_with_run_config, refuse_early, run_job
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.tune.settings import ABLATIONS, AblationConfig
from ramen_ray.printed_commands import looking_at, training_command


def main() -> None:
    """Parse, train all variants, and print how they compare."""
    ablation, config = parse_with_run_config(AblationConfig(), __doc__)
    refuse_early(config, {}, ABLATIONS)
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.tune.ablation import ablate
        from ramen_ray.reports.ablation_report import ablation_tables
        from ramen_ray.reports.report_tables import show
    result = ablate(config, ablation)
    for table in ablation_tables(result.variants):
        show(table)
    for sentence in result.sentences:
        print(sentence)
    print(looking_at(result.report, result.run))
    print(f"next:    {training_command(result.config)}")


if __name__ == "__main__":
    run_job(main)
