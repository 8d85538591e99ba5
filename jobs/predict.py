r"""Answer a table of queries with a retriever.

Examples:
    python jobs/predict.py --model models:/NAME@champion --queries queries.csv --answers answers
    python jobs/predict.py --model models:/NAME/3 --queries logs/ \
        --columns.query-text query --answers answers --filter market=DE

Run the same command again to resume an interrupted one. The answers are parquet: the columns of
the queries, with ad_ids, ads, scores and error.
"""

import shlex
from pathlib import Path

from ramen_ray.command_line import ModelSettings, parse_settings, run_job
from ramen_ray.config import GB_PER_SHARD, FilterSettings, PositiveFloat, Section
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.deploy.prediction_files import Asked, query_files


class QueryColumns(Section):
    """Names of the columns in the table of queries."""

    query_text: str = "text"
    """Text of a query."""


class PredictSettings(FilterSettings, ModelSettings):
    """Write each query's best ads."""

    queries: str
    """Table of queries in CSV, TSV, JSON lines or parquet: a file, a folder or a glob."""
    columns: QueryColumns = QueryColumns()
    """Names of the columns in the table."""
    encoding: str = "utf-8"
    """Encoding of text files, such as windows-1252."""
    answers: Path
    """Folder to write the answers to."""
    top_k: int = 10
    """Ads per query."""
    use_gpu: bool = False
    """Wait for machines with GPUs; by default, GPUs are used only if the cluster has some now."""
    gb_per_shard: PositiveFloat = GB_PER_SHARD
    """GB of a retriever that one process holds; a larger one is cut into shards, a process each."""


def main() -> None:
    """Answer the queries and count them."""
    settings = parse_settings(PredictSettings, __doc__)
    asked = Asked(
        settings.queries,
        settings.top_k,
        settings.columns.query_text,
        settings.encoding,
        settings.params,
        settings.use_gpu,
        settings.gb_per_shard,
    )
    query_files(asked)
    registry = settings.registry()
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.deploy.predict import predict
    done = predict(registry, settings.model, asked, settings.answers.absolute())
    print(f"answers: {settings.answers} ({done.rows} queries, {done.errors} of them with an error)")
    look = f"import pandas; print(pandas.read_parquet({str(settings.answers)!r}))"
    print(f"next:    {shlex.join(['python', '-c', look])}")


if __name__ == "__main__":
    run_job(main)
