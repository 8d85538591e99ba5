"""Answers of two retrievers, drawn and pooled to be judged blind, and what judges say of them.

A folder has DRAWN, what was drawn; a file of JSON lines for each judge, to which every answer is
added before the next is asked; and JUDGEMENTS, a table for jobs/ingest.py.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field

from ramen_ray.data.findings import FaultKind, Tallies, raise_errors
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.judgements import Judgements
from ramen_ray.data.store.made_folder import read_json, whole_file, write_json
from ramen_ray.errors import UserError
from ramen_ray.method.metrics.comparison import Difference, paired_differences
from ramen_ray.method.metrics.drawn import drawn_places, inclusion, kappa, weighed
from ramen_ray.method.metrics.ranking import PerQuery, judged_metrics
from ramen_ray.orchestration.deploy.comparing import Answering
from ramen_ray.tracking.registry import Registry

DRAWN = "drawn.json"
JUDGEMENTS = "judgements.parquet"
DEPTH = 5  # answers of each retriever
BEST = 3
SAME = 0.25  # the weight of a query of which both have the same answers; of two others' it is 1.25
METRICS = ("bad@5", "judged/N@5")
GUIDELINE = (
    "How well does the ad answer the query? 3: it is what was searched for; 2: it answers, but for"
    " a detail; 1: it is something else of the same kind; 0: it has nothing to do with it."
)
BAD_LINE = FaultKind(
    f'lines are not {{"pair": NUMBER, "grade": 0 to {BEST}}} of a pair that was drawn',
    "correct them, or take them out",
)


class JudgingError(UserError):
    """A folder has another judging, or what a judge has said cannot be read."""


class Said(BaseModel, strict=True):
    """What a judge says of a pair; a grade of None takes the one before back."""

    pair: Annotated[int, Field(ge=0)]
    grade: Annotated[int, Field(ge=0, le=BEST)] | None
    note: str = ""

    def put_into(self, grades: dict[int, int]) -> None:
        """Make it the last of grades by pair."""
        grades.pop(self.pair, None)
        if self.grade is not None:
            grades[self.pair] = self.grade


@dataclass(frozen=True)
class Judging:
    """A folder in which answers are judged."""

    folder: Path

    @classmethod
    def begin(
        cls, folder: Path, registry: Registry, models: list[str], dataset: Dataset, **how: Any
    ) -> "Judging":
        """Draw ``count`` queries of a ``split`` and their answers, unless the folder has these.

        Raises a JudgingError if it has others.
        """
        judging = cls(folder)
        uris = [registry.look_up(uri).uri for uri in models]
        made_from = {"models": uris, "dataset": dataset.fingerprint, **how}
        if (folder / DRAWN).exists():
            if judging.drawn["made_from"] != made_from:
                raise JudgingError(
                    f"{folder} has answers of other retrievers, queries or settings; give another "
                    f"--judgements"
                )
            return judging
        sides = [Answering.load(registry, uri) for uri in uris]
        content = {"made_from": made_from, **_drawn(sides, dataset, **how)}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / DRAWN, content)
        return judging

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """What was drawn: ``queries`` with texts and answers, and the ``pairs`` in their order."""
        file = self.folder / DRAWN
        try:
            content: dict[str, Any] = read_json(file)
        except ValueError:
            content = {}
        if not isinstance(content, dict) or content.keys() != {"made_from", "queries", "pairs"}:
            raise JudgingError(f"{file} is not as it was written; give another --judgements")
        return content

    @property
    def judges(self) -> list[str]:
        """The names of all who have judged."""
        return sorted(file.stem for file in self.folder.glob("*.jsonl"))

    def grades(self, judge: str) -> dict[int, int]:
        """Return a judge's grades by pair, in the order in which they were given last."""
        file = self.folder / f"{judge}.jsonl"
        if not file.exists():
            return {}
        whole, _, last = file.read_bytes().rpartition(b"\n")
        if last:  # the process was killed while it wrote, or the file was edited
            try:
                self.said(last)
            except ValueError:
                os.truncate(file, len(whole) + bool(whole))
            else:
                self._append(judge, "\n")
        return self.read_grades(file)

    def read_grades(self, file: Path) -> dict[int, int]:
        """Read grades by pair from JSON lines; a grade of null takes one back.

        Raises a DatasetError that names the first line that is not one of them.
        """
        grades: dict[int, int] = {}
        faults = Tallies()
        for number, line in enumerate(file.read_bytes().splitlines(), 1):
            try:
                said = self.said(line)
            except ValueError:
                faults.add(BAD_LINE, file, [number], [line.decode(errors="replace")])
            else:
                said.put_into(grades)
        raise_errors(str(file), [tally.finding() for tally in faults.values()])
        return grades

    def said(self, line: bytes) -> Said:
        """Read what is said of a pair, or raise a ValueError."""
        said = Said.model_validate_json(line)
        if said.pair >= len(self.drawn["pairs"]):
            raise ValueError("no such pair")
        return said

    def note(self, judge: str, said: Said) -> None:
        """Add what a judge says to the file; it is on the disk when this returns."""
        self._append(judge, f"{said.model_dump_json()}\n")

    def _append(self, judge: str, text: str) -> None:
        with (self.folder / f"{judge}.jsonl").open("a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def prompts(self) -> Iterator[dict[str, Any]]:
        """Yield each pair with a prompt for a language model."""
        for number, pair in enumerate(self.drawn["pairs"]):
            query = self.drawn["queries"][pair["query"]]["text"]
            prompt = (
                f"{GUIDELINE}\nQuery: {query}\nAd: {pair['text']}\nAnswer with the number only."
            )
            yield {"pair": number, "prompt": prompt}

    def write_table(self) -> Path:
        """Write all judges' grades as a table of query, ad, grade and source; returns the file."""
        rows = [
            (self.drawn["queries"][pair["query"]]["name"], pair["name"], grade, judge)
            for judge in self.judges
            for number, grade in self.grades(judge).items()
            for pair in [self.drawn["pairs"][number]]
        ]
        table = pd.DataFrame(rows, columns=["query", "ad", "grade", "source"])
        with whole_file(self.folder / JUDGEMENTS) as aside:
            table.to_parquet(aside, index=False)
        return self.folder / JUDGEMENTS

    def agreements(self) -> dict[tuple[str, str], tuple[float, int]]:
        """Return kappa, and on how many pairs, of each two judges who have any in common."""
        grades = {judge: self.grades(judge) for judge in self.judges}
        kappas = {}
        for ours, theirs in combinations(grades, 2):
            if common := sorted(grades[ours].keys() & grades[theirs].keys()):
                sides = [[grades[judge][pair] for pair in common] for judge in (ours, theirs)]
                kappas[ours, theirs] = kappa(*sides), len(common)
        return kappas

    def figures(self) -> tuple[int, dict[str, dict[str, Difference]]]:
        """Return how many queries are judged whole, and METRICS of the retrievers by name.

        ``champion`` and ``challenger`` have values, and ``difference`` the second less the first,
        with their 95 % intervals; all stand for the whole split. The mean of the judges counts.
        """
        pairs = self.drawn["pairs"]
        queries = self.drawn["queries"]
        given: dict[int, list[int]] = {}
        for judge in self.judges:
            for pair, grade in self.grades(judge).items():
                given.setdefault(pair, []).append(grade)
        missing = {pair["query"] for number, pair in enumerate(pairs) if number not in given}
        whole = [place for place in range(len(queries)) if place not in missing]
        if not whole:
            return 0, {}
        rows = [
            (pairs[number]["query"], pairs[number]["ad"], np.mean(grades) / BEST)
            for number, grades in given.items()
        ]
        judged = Judgements(*map(np.array, zip(*rows, strict=True)))
        weights = np.array([queries[place]["weight"] for place in whole])

        def measured(side: int) -> dict[str, PerQuery]:
            answers = np.array([query["answers"][side] for query in queries])
            metrics = judged_metrics(answers, judged)
            kept = {name: (metrics[name][0][whole], metrics[name][1][whole]) for name in METRICS}
            return weighed(kept, weights)

        champion = measured(0)
        challenger = measured(1)
        nothing = {name: (0 * gained, possible) for name, (gained, possible) in champion.items()}
        return len(whole), {
            "champion": paired_differences(champion, nothing),
            "challenger": paired_differences(challenger, nothing),
            "difference": paired_differences(challenger, champion),
        }


def _drawn(
    sides: list[Answering], dataset: Dataset, split: str, count: int, seed: int
) -> dict[str, Any]:
    """Draw queries, more often those with clicks and those of which the sides' answers differ."""
    queries = dataset.read(f"queries/{split}").sort_by("query_id")
    ads = dataset.read("ads").sort_by("ad_id")
    texts = queries["text"].to_pylist()
    answers = [side.retrieve(texts, DEPTH, side.ads_of_rows(dataset))[0] for side in sides]
    ours, theirs = answers
    is_in_both = (ours[:, :, None] == theirs[:, None]).any(axis=2) | (ours < 0)
    traffic = dataset.clicks(split).astype(np.float64).sum(axis=1)
    weights = np.maximum(traffic, 1.0) * (SAME + (~is_in_both).mean(axis=1))
    chances = inclusion(weights, min(count, len(texts)))
    draw = np.random.default_rng(seed)
    places = drawn_places(chances, draw).tolist()
    names = [
        rows["source_id" if "source_id" in rows.column_names else "text"] for rows in (queries, ads)
    ]
    pairs = [
        {"query": number, "ad": ad, "name": names[1][ad].as_py(), "text": ads["text"][ad].as_py()}
        for number, place in enumerate(places)
        for ad in draw.permutation(
            np.unique(np.concatenate([side[place] for side in answers]))
        ).tolist()
        if ad >= 0
    ]
    of_queries = [
        {
            "name": names[0][place].as_py(),
            "text": texts[place],
            "weight": 1 / chances[place],
            "answers": [side[place].tolist() for side in answers],
        }
        for place in places
    ]
    return {"queries": of_queries, "pairs": pairs}
