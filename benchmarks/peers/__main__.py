"""The packages that a user may have today beside ours: quality, seconds, memory, size, speed.

Rivals: TF-IDF, BM25, MiniLM zero-shot; sentence-transformers' trainer; PECOS XR-Linear, napkinXC
PLT, omikuji's Parabel and Bonsai, in environments that are made by name and version; and our bases,
each with and without RAMEN, OAK and AugGT. All get the same queries, ads and clicks, lose the same
filter pairs, and are measured by the same code. Settings are chosen on validation by P@1 + R@10,
within the same budget of processor seconds for each; test is asked once. Every try and every run is
kept, so that the same command continues where it was stopped. `ratio` is the P@1 of the best of
ours over that of the best rival, both by validation, on the last dataset.

    python -m benchmarks.peers [--sets foldoc debian rdocs] [--seeds 3] [--rivals NAME ...]

`--budget` is seconds for choosing settings; `--kept` shows what is there and runs nothing.
"""

from benchmarks.common import NUM_THREADS, ROOT, finish, options
from benchmarks.peers import lexical, ours, tables, trainer, trees
from benchmarks.peers.measuring import Contest

RIVALS = {**lexical.RIVALS, **trainer.RIVALS, **trees.RIVALS, **ours.RIVALS}
COSTS_OF = ("ance + RAMEN", "ance", "ngame", "OAK", "unidec + RAMEN")


def main() -> None:
    """Measure what is not there yet, and print the tables."""
    sets, rivals = ["foldoc", "debian", "rdocs"], list(RIVALS)
    asked = options(
        __doc__,
        sets=sets,
        seeds=3,
        rivals=rivals,
        budget=600.0,
        threads=NUM_THREADS,
        kept=False,
    )
    budget = 0.0 if asked.kept else asked.budget
    found: dict[str, tables.Runs] = {}
    for dataset in asked.sets:
        folder = ROOT / "datasets" / dataset
        contests = {
            name: Contest(name, RIVALS[name], folder, budget, asked.threads)
            for name in asked.rivals
        }
        runs_of = {
            name: [
                contest.run(seed)
                for seed in seeds_of(contest, asked.seeds)
                if not asked.kept or contest.is_kept(seed)
            ]
            for name, contest in contests.items()
        }
        found[dataset] = {name: runs for name, runs in runs_of.items() if runs}
        print_tables(dataset, found[dataset])
    finish(lead_of_ours(found[asked.sets[-1]]), {})


def seeds_of(contest: Contest, num_seeds: int) -> range:
    """Return the seeds that a rival is run with."""
    return range(num_seeds if contest.rival.is_random else 1)


def print_tables(dataset: str, found: tables.Runs) -> None:
    """Print what was found on a dataset."""
    print(f"\n## {dataset}\n\n{tables.quality(found)}\n\n{tables.costs(found)}\n")
    own = [name for name in found if name in ours.RIVALS]
    if own:
        print(tables.lead(found, tables.best_by_validation(found, own)) + "\n")
        print(tables.relative_costs(found, COSTS_OF), flush=True)


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
