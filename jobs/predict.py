"""Answer a table of queries with a retriever.

Examples:
    python jobs/predict.py --model models:/NAME@champion --queries queries.parquet --answers answers
    python jobs/predict.py --model models:/NAME/3 --queries logs/ --column query --answers answers

Run the same command again to resume if it was interrupted. The answers are parquet: the queries'
columns with ad_ids, ads, scores and error.
"""

import logging
import sys
from pathlib import Path

import tyro

from ramen_ray.command_line import parse_call, run_job
from ramen_ray.orchestration.deployment.predict import QueryTable, predict
from ramen_ray.tracking.registry import Registry
from ramen_ray.tracking.runs import tracking_uri


def answer(
    model: str,
    table: tyro.conf.OmitArgPrefixes[QueryTable],
    answers: Path,
    top_k: int = 10,
    use_gpu: bool = False,
    output: Path = Path("outputs"),
) -> None:
    """Write each query's best ads.

    Args:
        model: The retriever: models:/NAME@champion, models:/NAME/VERSION or models:/MODEL_ID.
        table: Queries.
        answers: Folder to write.
        top_k: Ads per query.
        use_gpu: Wait for machines with GPUs; without this, those are used that there are by now.
        output: Folder with the MLflow store; ignored if MLFLOW_TRACKING_URI is set.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    registry = Registry(tracking_uri(output))
    done = predict(registry, model, table, answers.absolute(), top_k, use_gpu)
    print(f"answers: {answers} ({done.rows} queries, {done.errors} of them with an error)")


def main() -> None:
    """Parse and answer."""
    parse_call(answer, __doc__)()


if __name__ == "__main__":
    sys.exit(run_job(main))
