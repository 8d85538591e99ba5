"""Add new ads to a retriever by their texts, without training.

Examples:
    python jobs/index.py --model models:/NAME@champion --ads new_ads.csv
    python jobs/index.py --model models:/NAME/3 --ads new_ads.parquet

The result is a new version, which takes over the alias if one was named; jobs/promote.py --restore
moves the alias back.
"""

import sys
from pathlib import Path

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.orchestration.deployment.new_ads import extend_retriever
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import tracking_uri


def index(model: str, ads: str, output: Path = Path("outputs")) -> None:
    """Index new ads.

    Args:
        model: The retriever: models:/NAME@champion, models:/NAME/VERSION or models:/MODEL_ID.
        ads: CSV, TSV, JSON lines or parquet with columns ad_id and text.
        output: Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set.
    """
    made = extend_retriever(Registry(tracking_uri(output)), model, ads, output)
    print(f"{made.model_uri} has {made.num_ads} ads, {made.num_new} of them new")


def main() -> None:
    """Parse and index."""
    parse_call(index, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
