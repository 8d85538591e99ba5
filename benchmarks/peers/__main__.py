"""The packages that a user may have today beside ours: quality, seconds, memory, size, speed.

Rivals: TF-IDF, BM25, MiniLM zero-shot; sentence-transformers' trainer; PECOS XR-Linear, napkinXC
PLT, omikuji's Parabel and Bonsai, in environments that are made by name and version; and our bases,
each with and without RAMEN, OAK and AugGT. All get the same queries, ads and clicks, lose the same
filter pairs, and are measured by the same code. Settings are chosen on validation by P@1 + R@10,
within the same budget of processor seconds for each; test is asked once. Every try and every run is
kept, so that the same command continues where it was stopped. `ratio` is the P@1 of the best of
ours over that of the best rival, both by validation, on the last dataset.

    python -m benchmarks.peers [--sets foldoc debian rdocs] [--seeds 3] [--rivals NAME ...]
        [--into docs/evidence]

`--budget` is seconds for choosing settings; `--kept` shows what is there and runs nothing.
"""

from benchmarks.common import NUM_THREADS, ROOT, finish, options
from benchmarks.peers import lexical, ours, tables, trainer, trees
from benchmarks.peers.measuring import Contest, Run
from benchmarks.tables import write

RIVALS = {**lexical.RIVALS, **trainer.RIVALS, **trees.RIVALS, **ours.RIVALS}
COSTS_OF = ("ance + RAMEN", "ance", "ngame", "OAK", "unidec + RAMEN")


def main() -> None:
    """Measure what is not there yet, and write the tables."""
    asked = options(
        __doc__,
        sets=["foldoc", "debian", "rdocs"],
        seeds=3,
        rivals=list(RIVALS),
        budget=600.0,
        threads=NUM_THREADS,
        kept=False,
        into="",
    )
    peers, lead, relative = (list[tables.Line]() for _ in range(3))
    gain = 1.0
    for dataset in asked.sets:
        found: dict[str, list[Run]] = {}
        for name in asked.rivals:
            budget = 0.0 if asked.kept else asked.budget
            folder, rival = ROOT / "datasets" / dataset, RIVALS[name]
            contest = Contest(name, rival, folder, budget, asked.threads)
            for seed in range(asked.seeds if rival.is_random else 1):
                if not asked.kept or contest.is_kept(seed):
                    found.setdefault(name, []).append(contest.run(seed))
        peers += tables.quality_and_costs(dataset, found)
        own = [name for name in found if name in ours.RIVALS]
        if own:
            lead += tables.lead(dataset, found, tables.best_by_validation(found, own))
            relative += tables.relative_costs(dataset, found, COSTS_OF)
        gain = lead_of_ours(found)
    for table, lines in (
        ("peers", peers),
        ("peers_lead", lead),
        ("peers_relative_costs", relative),
    ):
        write(table, lines, asked.into)
    finish(gain, {})


def lead_of_ours(runs_of: tables.Runs) -> float:
    """Return the P@1 of the best of ours over that of the best rival."""
    own = [name for name in runs_of if name in ours.RIVALS]
    sides = own, [name for name in runs_of if name not in own]
    if not all(sides):
        return 1.0
    best = (runs_of[tables.best_by_validation(runs_of, names)] for names in sides)
    first, second = (tables.value(runs, "P@1") for runs in best)
    return first / second


if __name__ == "__main__":
    main()
