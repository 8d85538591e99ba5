"""Why a training step takes longer on more data: what its batches hold, or where it is read from.

Of more queries, ads and anchors a batch draws fewer twice, so it encodes more distinct texts, and
compares its nodes with more candidates. A straight line in both, through steps of several batch
sizes on the smallest data, says how long a step on the others would take if nothing else counted.
Data are those of `benchmarks.scale`; a bag, both sides of one set, one thread. `ratio` is a step of
1,024 queries on the largest data over what the line says.

    python -m benchmarks.step_growth [--sizes 20000 100000 1000000] [--rounds 2]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import alternate, finish, in_fresh_process, medians
from benchmarks.scale.generated import Shape
from benchmarks.scale.measuring import measure_size
from benchmarks.scale.stages import BATCH_SIZE, WARMUP_STEPS, BagRun, bag_run

STEPS = 10
EDGES = 5
FITTED_BATCHES = (BATCH_SIZE // 2, BATCH_SIZE, BATCH_SIZE * 3 // 2, BATCH_SIZE * 2)


def main() -> None:
    """Make the data, and time the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folders = {size: Path(name) / str(size) for size in options.sizes}
        for size, folder in folders.items():
            folder.mkdir()
            measure_size(Shape(size, EDGES), folder, ["clicks", "edges", "prepare", "walk"])
        smallest, *others = folders
        cases = [(smallest, batch) for batch in FITTED_BATCHES]
        cases += [(size, BATCH_SIZE) for size in others]
        sides = {
            f"{size} x {batch}": lambda size=size, batch=batch: in_fresh_process(
                time_steps, folders[size], batch
            )
            for size, batch in cases
        }
        steps = {case: medians(rows) for case, rows in alternate(options.rounds, sides).items()}
    rows = list(steps.values())
    known = rows[: len(FITTED_BATCHES)]
    held = np.array([[row["texts"], row["pairs"]] for row in known])
    seconds = np.array([row["seconds"] for row in known])
    per_text, per_pair = np.linalg.lstsq(held / seconds[:, None], np.ones(len(known)))[0]
    for row in rows:
        row["expected_s"] = row["texts"] * per_text + row["pairs"] * per_pair
    costs = {"seconds_per_text": per_text, "seconds_per_pair": per_pair}
    finish(rows[-1]["seconds"] / rows[-1]["expected_s"], {**costs, "steps": steps})


def time_steps(folder: Path, batch_size: int) -> dict[str, float]:
    """Return a step's seconds, distinct texts, and pairs of a node with a candidate."""
    from ramen_ray.method.training.step import train_steps

    torch.set_num_threads(1)
    run = bag_run(folder, batch_size)
    stop = WARMUP_STEPS + STEPS
    held = _held_by_batches(run, range(WARMUP_STEPS, stop))
    list(train_steps(run.state, run.sampler, run.objective, WARMUP_STEPS))
    started = time.perf_counter()
    list(train_steps(run.state, run.sampler, run.objective, stop))
    return {"seconds": (time.perf_counter() - started) / STEPS, **held}


def _held_by_batches(run: BagRun, steps: range) -> dict[str, float]:
    """Return the mean numbers of distinct texts and of pairs in the batches of ``steps``."""
    from ramen_ray.method.training.prefetching import step_inputs

    texts, pairs = [], []
    for inputs in step_inputs(
        run.sampler, run.state.draws, run.objective, steps, torch.device("cpu")
    ):
        texts.append(len(inputs.texts.rows))
        pairs.append(len(inputs.batch.queries) * len(inputs.ad_pool.ids))
        for regularizer, (nodes, _) in inputs.batch.anchors.items():
            pairs[-1] += len(nodes) * len(inputs.anchor_pools[regularizer.anchor_set].ids)
    return {"texts": float(np.mean(texts)), "pairs": float(np.mean(pairs))}


if __name__ == "__main__":
    main()
