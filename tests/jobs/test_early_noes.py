"""What a job refuses by its words and files is refused before libraries of seconds are loaded."""

import subprocess
import sys

from support import ROOT

REFUSED = [
    "ablate --dataset none",
    "ask query --output none",
    "compile --model models:/shop@champion --output none",
    "describe none",
    "evaluate --against other.parquet --checkpoint none",
    "export retriever models:/shop@champion --to folder --output none",
    "graph remove none --name links",
    "index --model models:/shop@champion --sync none.csv --output none",
    "ingest tables --clicks none.csv --output none",
    "predict --model models:/shop@champion --queries none.parquet --answers a --output none",
    "promote outputs/runs/none --name shop --output none",
    "serve --model models:/shop@champion --output none",
    "train --dataset none",
    "tune --dataset none",
    "validate none",
]
RUNS = """
import importlib, sys
from ramen_ray.command_line import run_job

for line in sys.argv[1:]:
    job, *words = line.split()
    sys.argv = [job, *words]
    code = run_job(importlib.import_module(f"jobs.{job}").main)
    loaded = sorted({"faiss", "mlflow", "ray", "torch", "transformers"} & sys.modules.keys())
    assert (code, loaded) == (2, []), (line, code, loaded)
"""


def test_noes_come_before_libraries_are_loaded(tmp_path):
    command = [sys.executable, "-c", RUNS, *REFUSED]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
