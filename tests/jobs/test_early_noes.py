"""What a job refuses is refused before libraries of seconds are loaded; its store needs MLflow."""

import shutil
import subprocess
import sys

from support import ROOT

from ramen_ray.config import overlay, write_config
from ramen_ray.data.store.made_folder import folder_lock
from ramen_ray.orchestration.run.directory import CONFIG_FILE, RunDirectory
from ramen_ray.orchestration.tune.settings import SWEEPS
from ramen_ray.presets import tiny

BY_WORDS_AND_FILES = [
    "ablate --dataset none",
    "ask query --output none",
    "combine --run none",
    "compile --model models:/shop@champion --output none",
    "describe none",
    "evaluate --against other.parquet --checkpoint none",
    "evaluate --checkpoint none",
    "export models:/shop@champion --to folder --output none",
    "graph remove none --name links",
    "graph similar none",
    "index --model models:/shop@champion --sync none.csv",
    "index --model models:/shop@champion --sync ads.csv --columns.ad-text title",
    "ingest tables --clicks none.csv --output none",
    "predict --model models:/shop@champion --queries none.parquet --answers a",
    "promote outputs/runs/none --name shop --output none",
    "recommend none",
    "score --model models:/shop@champion --dataset none",
    "serve --model models:/shop@champion --min-replicas 2",
    "serve --model models:/shop@champion --output none",
    "train --dataset none",
    "train tiny --name held",
    "train tiny --name taken --seed 7",
    "tune --dataset none",
    "tune tiny --name taken --search random",
    "validate none",
]
BY_THE_STORE = [
    "ask query",
    "ask query --model models:/shop@champion",
    "combine --run models:/shop@champion",
    "compile --model models:/shop@champion",
    "export models:/shop@champion --to folder",
    "index --model models:/shop@champion --sync ads.csv",
    "predict --model models:/shop@champion --queries queries.parquet --answers a",
    "promote none --name shop",
    "promote outputs/runs/taken --name shop",
    "promote outputs/runs/taken --name shop --metric P@2",
    "promote --restore --name shop",
    "serve --model models:/shop@champion",
]
RUNS = """
import importlib, sys
from ramen_ray.command_line import run_job

_, allowed, *lines = sys.argv
for line in lines:
    job, *words = line.split()
    sys.argv = [job, *words]
    code = run_job(importlib.import_module(f"jobs.{job}").main)
    loaded = {"faiss", "mlflow", "ray", "torch", "transformers"} & sys.modules.keys()
    assert code == 2 and loaded <= {allowed}, (line, code, loaded)
"""


def test_noes_come_before_libraries_are_loaded(tmp_path, empty_store, dataset_path):
    output = tmp_path / "outputs"
    output.mkdir()
    shutil.copy(empty_store, output)
    (tmp_path / "ads.csv").write_text("ad_id,text\n1,a shoe\n")
    shutil.copy(dataset_path / "ads.parquet", tmp_path / "queries.parquet")
    taken, held = (RunDirectory.of(str(output), name) for name in ("taken", "held"))
    for directory in (taken, held):
        directory.create()
        directory.note(mlflow_run_id="0", plan={"seed": 3})
        write_config(overlay(tiny(), {"seed": 3}), directory.path / CONFIG_FILE)
    sweep = RunDirectory.of(str(output), "taken", SWEEPS)
    sweep.create()
    sweep.note(plan={"search": "tpe"})
    with folder_lock(held.path):
        _refuse(tmp_path, "", BY_WORDS_AND_FILES)
    _refuse(tmp_path, "mlflow", BY_THE_STORE)


def _refuse(folder, allowed, lines):
    command = [sys.executable, "-c", RUNS, allowed, *lines]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: ") == len(lines), done.stderr
