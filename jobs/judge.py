"""Judge the answers of two retrievers, blind and by keys, on a page in a browser.

Examples:
    python jobs/judge.py models:/shop@champion models:/shop@challenger --dataset shop
    python jobs/judge.py CHAMPION CHALLENGER --dataset shop --split train --queries 500
    python jobs/judge.py CHAMPION CHALLENGER --dataset shop --export-prompts prompts.jsonl
    python jobs/judge.py CHAMPION CHALLENGER --dataset shop --import-grades grades.jsonl --judge llm

Queries are drawn by their clicks, and more often where the two differ; all answers of a query are
shown in random order. What was judged is kept: the same command goes on, and another --judge
begins anew. At the end it prints what the grades say of the two for the whole split.
"""

import json
import shlex
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import Field

from ramen_ray.command_line import StoreSettings, parse_settings, run_job
from ramen_ray.config import Name, Positive
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.made_folder import whole_file
from ramen_ray.errors import shown_path
from ramen_ray.long_work import logged_progress
from ramen_ray.orchestration.serve.settings import listening_at

HERE = "127.0.0.1"


class JudgeSettings(StoreSettings):
    """Judge the answers of two retrievers."""

    champion: tyro.conf.Positional[str]
    """A retriever (models:/NAME@champion), or the folder of a run."""
    challenger: tyro.conf.Positional[str]
    """Another one."""
    dataset: str
    """Dataset directory whose queries are asked."""
    split: Literal["test", "validation", "train"] = "test"
    """Split of the queries; judgements of test queries measure, those of train queries train."""
    queries: Positive = 200
    """How many queries to draw."""
    seed: int = 0
    """Seed of the draws."""
    judgements: Path = Path("judgements")
    """Folder for what is drawn and judged."""
    judge: Name = "judge"
    """Your name, which is the source of your judgements."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Port of the page on this machine; 0 takes any that is free."""
    export_prompts: Path | None = None
    """Write the pairs as prompts for a language model to this file, as JSON lines, and end."""
    import_grades: Path | None = None
    """Take grades from this file, JSON lines of the prompts' "pair" and a "grade" from 0 to 3."""


def main() -> None:
    """Draw, ask, and print what the grades say."""
    settings = parse_settings(JudgeSettings, __doc__)
    dataset = Dataset(settings.dataset)
    listening = listening_at(HERE, settings.port)
    registry = settings.registry()
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.deploy.retrievers import retriever_uri
        from ramen_ray.orchestration.judge.judging import BEST, Judging, Said
        from ramen_ray.orchestration.judge.page import JudgePage
        from ramen_ray.reports.report_tables import judging_table, show
    models = [
        retriever_uri(registry, named, settings.output)
        for named in (settings.champion, settings.challenger)
    ]
    how = {"split": settings.split, "count": settings.queries, "seed": settings.seed}
    judging = Judging.begin(settings.judgements, registry, models, dataset, **how)
    if settings.export_prompts is not None:
        with whole_file(settings.export_prompts) as aside:
            aside.write_text("".join(f"{json.dumps(row)}\n" for row in judging.prompts()))
        print(f"prompts: {settings.export_prompts}")
        return
    if settings.import_grades is not None:
        for pair, grade in judging.read_grades(settings.import_grades).items():
            judging.note(settings.judge, Said(pair=pair, grade=grade))
    elif len(judging.grades(settings.judge)) < len(judging.drawn["pairs"]):
        print(f"judge at: http://{HERE}:{listening.getsockname()[1]}", flush=True)
        JudgePage(judging, settings.judge).server.run(sockets=[listening])
    num_queries, figures = judging.figures()
    print(f"{num_queries} of {len(judging.drawn['queries'])} queries are judged")
    if figures:
        show(judging_table(figures))
    for (ours, theirs), (kappa, number) in judging.agreements().items():
        print(f"{ours} and {theirs} agree on {number} pairs: kappa {kappa:.2f}")
    table = shown_path(judging.write_table())
    print(f"judgements: {table}")
    flags = ["--dataset", settings.dataset, "--judged", table, "--judged-highest", str(BEST)]
    words = ["python", "jobs/ingest.py", "judged", *flags, "--output", "judged"]
    print(f"next: {shlex.join(words)}")
    print(
        "      then jobs/train.py --dataset judged, or jobs/promote.py --test judged --veto bad@5"
    )


if __name__ == "__main__":
    run_job(main)
