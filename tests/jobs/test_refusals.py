"""What jobs refuse: one line names the flag, file or value, before libraries of seconds are loaded.

Of each line below, what comes after | is named. ``handmade`` is a dataset, ``shop`` has tables; in
``outputs`` are an empty store, a run that another process holds, and a run and a sweep named taken.
"""

import shutil
from importlib import import_module

from support import ROOT, run_python

from ramen_ray.config import overlay, write_config
from ramen_ray.data.store.made_folder import folder_lock
from ramen_ray.orchestration.cluster import joining
from ramen_ray.orchestration.run.directory import CONFIG_FILE, RunDirectory
from ramen_ray.orchestration.tune import experiment
from ramen_ray.orchestration.tune.settings import SWEEPS
from ramen_ray.presets import tiny

BY_WORDS_AND_FILES = """
ablate --dataset none | none
ablate tiny --experiment ../x | experiment
ask query --output none | none
combine --run none | none
compile --model models:/shop@champion --output none | none
describe none | none
evaluate --against other.parquet --checkpoint none | --against
evaluate --checkpoint none | none
export models:/shop@champion --to folder --output none | none
graph co-session handmade --sessions ads.csv --max-gap-s nan | max_gap_s
graph co-session handmade --sessions ads.csv --top-k 0 | top_k
graph remove none --name links | none
graph similar handmade --min-similarity 0.97 | min_similarity
graph similar handmade --top-k 0 | top_k
graph similar handmade --top-k 1024 | top_k
graph similar none | none
index --model models:/shop@champion | --sync
index --model models:/shop@champion --sync ads.csv --columns.ad-text title | title
index --model models:/shop@champion --sync ads.csv --remove ads.csv | --remove
index --model models:/shop@champion --sync none.csv | none.csv
ingest novel --dataset handmade --output LONG | LONG
ingest novel --dataset handmade --output made --novel-fraction 0.97 | validation query
ingest novel --dataset handmade --output made --novel-fraction 0.99 | 0.99
ingest novel --dataset handmade --output made --novel-fraction nan | nan
ingest novel --dataset handmade --output /proc | /proc
ingest novel --dataset handmade --output s3://bucket/files | s3:/bucket/files
ingest novel --dataset none --output made | none
ingest tables --clicks /dev/null --output made | /dev/null
ingest tables --clicks none.csv --output none | none.csv
ingest tables CLICKS --ad-edges a/b x.csv | a/b
ingest tables CLICKS --anchors links x.csv | query_edges
ingest tables CLICKS ADS --columns.ad-filters colour | colour
ingest tables CLICKS ADS --columns.ad-filters state State | --columns.ad-filters
ingest tables CLICKS ADS --memory 1KB | --memory
ingest tables CLICKS BY_TIME --clicks-from 20260405 | '20260405'
ingest tables CLICKS --columns.ad-filters colour | columns.ad_filters
ingest tables CLICKS --columns.clicks-query id --columns.clicks-ad id | columns.clicks_query
ingest tables CLICKS --columns.clicks-views views | columns.clicks_views
ingest tables CLICKS --columns.query-split part | columns.query_split
ingest tables CLICKS --encoding klingon | klingon
ingest tables CLICKS --judged x.csv --judged-highest 0 | judged_highest
ingest tables CLICKS --max-clicks-per-query nan | max_clicks_per_query
ingest tables CLICKS --queries x.csv --query-splits x.csv --columns.query-split part | query_splits
ingest tables CLICKS --query-splits x.csv BY_TIME | query_splits
ingest tables CLICKS --splits.test-fraction 0 | splits.test_fraction
ingest tables CLICKS --splits.test-fraction 0.96 | splits.validation_fraction
ingest tables CLICKS --splits.test-from 2026-03-01 | columns.clicks_time
ingest tables CLICKS --columns.clicks-time day --splits.test-from spring | spring
ingest tables CLICKS --columns.clicks-time day --splits.validation-from 2026-03-01 | splits.test
ingest tables CLICKS BY_TIME --splits.held-out later-clicks | splits.validation_from
ingest tables CLICKS BY_TIME --splits.validation-from 2026-03-09 | splits.test_from
ingest tables CLICKS --weights coec | columns.clicks_weight
predict --model models:/shop@champion --queries none.parquet --answers a | none.parquet
promote --name shop | --restore
promote outputs/runs/none --name shop --output none | none
recommend none | none
score --model models:/shop@champion --dataset none | none
serve --model models:/shop@champion --min-replicas 2 | min_replicas
serve --model models:/shop@champion --output none | none
train --config | --config
train --dataset none | none
train --seed 1 tiny | tiny
train -seed 1 | -seed
train bag --base.cluster-size 8 | base.cluster_size does nothing
train bag --classifier.lr 0.1 | classifier.lr does nothing
train bag --encoder.num-layers 2 | encoder.num_layers does nothing
train bag --loss.temperature 0.1 | loss.temperature does nothing
train bag-unidec --walk.num-hops 9 | walk.num_hops does nothing
train bag-unidec --workers.gpus-per-worker 1 | workers.gpus_per_worker does nothing
train nonesuch | 'nonesuch'
train bag --base.kind ance --training.epochs 2 | base.refresh_every
train tiny --base.kind ance --base.num-hard-negatives 101 | num_hard_negatives 101
train bag --base.kind ngame --training.epochs 2 | base.first_clustered_epoch
train bag --base.kind unidec --pruning.mode synchronous --training.epochs 2 | pruned graphs
train tiny --name ../x | name
train tiny --name held | held
train tiny --name taken --seed 7 | taken
train tiny --optimizer.lr 0 | optimizer.lr
train tiny --optimizer.lrr 1 | --optimizer.lrr
train tiny --output a%41b | a%41b
train tiny --output s3://bucket | s3:/bucket
train tiny --pruning.mode asynchronous | training.epochs 2
train tiny --regularization.lambda-x.nonesuch 1 | nonesuch
train tiny --seed LONG | seed
train tiny --training.epochs many | --training.epochs
train tiny --training.global-batch-size 3 --workers.num-workers 4 | global_batch_size 3
train tiny --workers.num-workers 2 --workers.min-workers 3 | min_workers 3
train tiny --workers.num-workers 2 --workers.use-gpu --workers.gpus-per-worker 0.5 | 0.5
tune --dataset none | none
tune tiny --experiment ../x | experiment
tune tiny --name taken --search random | taken
tune tiny --num-samples 0 | num_samples
validate none | none
"""
BY_THE_STORE = """
from here on | mlflow
ask query | outputs
ask query --model no/run | no/run
ask query --model models:/shop@champion | shop
combine --run models:/shop@champion | shop
compile --model models:/shop@champion | shop
export models:/shop@champion --to folder | shop
index --model models:/shop@champion --sync ads.csv | shop
predict --model models:/shop@champion --queries queries.parquet --answers a | shop
promote none --name shop | none
promote outputs/runs/taken --name shop | id=0
promote outputs/runs/taken --name shop --metric P@2 | P@2
promote --restore --name shop | shop
serve --model models:/shop@champion | shop
"""
BY_THE_ENCODER = """
plan --queries 1M --ads 0 | '0'
plan --queries 1M --ads 1M --encoder large | --encoder
plan --queries many --ads 1M | 'many'
train tiny --encoder.pretrained ./no/encoder | ./no/encoder
train tiny --encoder.projection-dim 1000 | encoder.projection_dim 1000
train tiny --index.kind ivf_pq | index.kind ivf_pq
train tiny --output /proc/nowhere | /proc/nowhere
train tiny --training.global-batch-size 100000 | training.global_batch_size 100000
train tiny --training.selection-metric P@2 | P@2
train tiny CLUSTERED --base.double-cluster-size-at 1 1 2 --base.cluster-size 4 | cluster_size 4
train tiny CLUSTERED --base.double-cluster-size-at 3 4 --training.epochs 6 | size_at 4
tune tiny --from-sweep none | --from-sweep none
tune tiny --space all | --space all
tune tiny --training.selection-metric Q@1 | Q@1
"""
SHORT = {
    "ADS": "--ads shop/catalogue.csv --columns.ad-text title",
    "BY_TIME": "--columns.clicks-time day --splits.test-from 2026-03-01",
    "CLICKS": "--clicks shop/clicks.csv --output made",
    "CLUSTERED": "--training.global-batch-size 8 --base.kind ngame --base.first-clustered-epoch 1 "
    "--base.refresh-every 2",
    "LONG": "9" * 5000,
}
RUNS = """
import contextlib, importlib, io, sys
from ramen_ray.command_line import run_job

_, *lines = sys.argv
allowed = set()
for line in lines:
    command, named = line.split(" | ")
    if command == "from here on":
        allowed.add(named)
        continue
    job, *words = command.split()
    sys.argv = [job, *words]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            run_job(importlib.import_module(f"jobs.{job}").main)
    except SystemExit as ended:
        code = ended.code
    _, error = said.getvalue().split("error: ")
    is_one_line = all(finding.startswith("  - ") for finding in error.splitlines()[1:])
    loaded = {"faiss", "mlflow", "ray", "torch", "transformers"} & sys.modules.keys()
    assert code == 2 and is_one_line and named in error, (line, error)
    assert loaded <= allowed, (line, loaded)
"""


def test_refusals_are_one_line_that_names_what_is_wrong(
    refused, tmp_path, empty_store, dataset_path, monkeypatch
):
    output = tmp_path / "outputs"
    output.mkdir()
    shutil.copy(empty_store, output)
    (tmp_path / "handmade").symlink_to(dataset_path)
    (tmp_path / "shop").symlink_to(ROOT / "datasets" / "shop" / "week_1")
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
        before = sorted(tmp_path.rglob("[!.]*"))
        lines = _lines(BY_WORDS_AND_FILES) + _lines(BY_THE_STORE)
        environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
        run_python("-c", RUNS, *lines, cwd=tmp_path, env=environment)
    monkeypatch.chdir(tmp_path)
    for module in (joining, experiment):
        monkeypatch.setattr(module, "start_ray", lambda **_: None)
    for line in _lines(BY_THE_ENCODER):
        command, named = line.split(" | ")
        job, *words = command.split()
        assert named in refused(import_module(f"jobs.{job}"), *words)
    assert sorted(tmp_path.rglob("[!.]*")) == before


def _lines(block):
    for short, words in SHORT.items():
        block = block.replace(short, words)
    return block.strip().splitlines()
