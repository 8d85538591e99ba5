"""Shared fixtures: a small learnable dataset and a tiny encoder, both prepared.

Ray, MLflow, torch and transformers are imported where they are used: the process that hands out the
tests to others reads this file too, and would take ten seconds to import what it never uses.
"""

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["RAY_ADDRESS"] = "local"  # never use the cluster of another test or of the machine
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"
os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "600"  # a busy machine is waited for
os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
os.environ["RAY_idle_worker_killing_time_threshold_ms"] = "600000"  # noqa: SIM112  Ray's spelling
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112  else other processes starve them
os.environ["RAY_enable_metrics_collection"] = "0"  # noqa: SIM112  as jobs have it
os.environ["RAY_LOG_MONITOR_MANY_FILES_THRESHOLD"] = "0"  # else it looks for logs all the time
os.environ["LOG_NAME_UPDATE_INTERVAL_S"] = "5"
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["OMP_NUM_THREADS"] = "1"  # more threads would wait for each other on a busy machine
# MLflow looks for a model's server on the path
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

import hypothesis
import numpy as np
import psutil
import pyarrow as pa
import pytest
from support import (
    MAX_LENGTH,
    NUM_CPUS,
    PATIENCE_S,
    node_edges,
    prepare_in_process,
    query_table,
    running,
    text_table,
    the_error,
    wait_until,
    with_ids,
    with_tables,
)

from ramen_ray.command_line import run_job
from ramen_ray.config import RunConfig, overlay
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.splits.novel import NovelSettings, make_novel_split
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.presets import tiny

# Repeatable, and nothing is left outside of tmp_path.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=20)
hypothesis.settings.load_profile("repeatable")

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOPICS = {
    "birds": ["robin", "heron", "finch", "raven", "egret", "stork", "crane"],
    "ships": ["sloop", "yawl", "ketch", "barge", "ferry", "punt", "canoe"],
    "trees": ["maple", "alder", "birch", "cedar", "larch", "rowan", "aspen"],
    "tools": ["chisel", "lathe", "anvil", "rasp", "plane", "auger", "mallet"],
    "stones": ["agate", "basalt", "chert", "flint", "gneiss", "marl", "shale"],
    "dances": ["tango", "waltz", "polka", "rumba", "jive", "samba", "minuet"],
}
COMMON_WORDS = ["old", "new", "small", "great", "northern", "rare"]
PLACES = {  # among the files with a cluster, and among the others; 0 by default
    "test_cluster": -1,  # it ends the shared cluster, which is then not started twice
    "test_jobs": -1,  # the longest
    **{"test_pruning": 1, "test_tasks": 2, "test_workers": 3},  # what they kill may cost a restart
}
GIVES_BACK_WITHIN_S = 6  # what a killed process had; Ray 2.60 can lose it, and restarts in 6 s
NUM_LINKS = 30
NUM_QUERIES = {"train": 60, "validation": 12, "test": 12}


def _pick(draw, values, how_many):
    return draw.choice(list(values), size=how_many, replace=False).tolist()


def _make_ads(draw):
    """Three words of the ad's topic and a common one; ads 33, 38 and 39 have the same text."""
    topic_words = list(TOPICS.values())
    ads = [_pick(draw, topic_words[j % 6], 3) + _pick(draw, COMMON_WORDS, 1) for j in range(40)]
    ads[38] = ads[39] = ads[33]
    return ads


def _make_queries(draw, ads, topics):
    """Two words of a first ad, at times a common one, and up to two more ads of its topic."""
    texts = []
    clicks = []
    for topic in topics:
        ad_ids = _pick(draw, range(topic, len(ads), 6), int(draw.integers(1, 4)))
        words = _pick(draw, ads[ad_ids[0]][:3], 2) + _pick(draw, COMMON_WORDS, 1)
        texts.append(" ".join(words[: draw.integers(2, 4)]))
        clicks.append(ad_ids)
    return texts, clicks


def _make_links(draw, topics):
    """Up to four weighted anchors of the node's topic; some nodes have none."""
    degrees = [0 if n % 7 == 3 else int(draw.integers(1, 5)) for n in range(len(topics))]
    links = [_pick(draw, range(t, NUM_LINKS, 6), d) for t, d in zip(topics, degrees, strict=True)]
    return links, [draw.uniform(0.5, 4.0, size=degree).tolist() for degree in degrees]


def pytest_addoption(parser):
    """``--record`` makes test_record.py record what it finds."""
    parser.addoption("--record", action="store_true")


def pytest_itemcollected(item):
    """Mark the tests that share a cluster: in one process Ray and its workers start once."""
    if _needs_cluster(item):
        item.add_marker("ray")


@pytest.hookimpl(trylast=True)  # when the slow ones are left out
def pytest_collection_modifyitems(items):
    """Let files with a cluster go first, after each other."""
    with_ray = {item.path for item in items if _needs_cluster(item)}
    items.sort(key=lambda item: (item.path not in with_ray, PLACES.get(item.path.stem, 0)))


def pytest_runtest_setup(item):
    """Skip what needs a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no GPU here")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage while tests are imported: what is imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _needs_cluster(item):
    return "cluster" in item.fixturenames


@pytest.fixture(autouse=True)
def _ctrl_c(request):
    """Give Ctrl-C back to Python after each test; a handler of Ray Train would swallow it."""
    yield
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        warnings.warn(f"{request.node.nodeid} leaves a handler of SIGINT", stacklevel=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def _ray_folder():
    """Give this process its own Ray folder: Ray connects to the newest cluster in its folder."""
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        yield
        import ray

        ray.shutdown()


@pytest.fixture(scope="session")
def dataset_path(tmp_path_factory) -> Path:
    """A dataset directory in which a query shares words with its ads and their common anchors."""
    draw = np.random.default_rng(11)
    ads = _make_ads(draw)
    tables = {"ads": text_table("ad_id", [" ".join(ad) for ad in ads])}
    topics = {side: [n % 6 for n in range(count)] for side, count in (("query", 60), ("ad", 40))}
    for split, count in NUM_QUERIES.items():
        texts, clicks = _make_queries(draw, ads, [n % 6 for n in range(count)])
        if split == "train":
            texts[0] = " ".join(ads[clicks[0][0]])
        tables[f"queries/{split}"] = query_table(texts, clicks)
        if split != "train":
            pairs = [(q, ad) for q in range(8) for ad in (q, q + 6) if ad not in clicks[q]]
            columns = zip(("query_id", "ad_id"), zip(*pairs, strict=True), strict=True)
            tables[f"filters/{split}"] = pa.table(dict(columns))
    links = [" ".join(_pick(draw, list(TOPICS.values())[j % 6], 2)) for j in range(NUM_LINKS)]
    tables["anchors/links"] = text_table("anchor_id", links)
    tables["anchors/topics"] = text_table("anchor_id", list(TOPICS))
    for side, of_node in topics.items():
        tables[f"edges/links/{side}"] = node_edges(f"{side}_id", *_make_links(draw, of_node))
        topic_edges = [[] if node % 9 == 5 else [topic] for node, topic in enumerate(of_node)]
        tables[f"edges/topics/{side}"] = node_edges(f"{side}_id", topic_edges)
    path = tmp_path_factory.mktemp("datasets") / "handmade"
    return write_dataset(path, tables, name="handmade").path


@pytest.fixture
def copied(dataset_path, tmp_path) -> Path:
    """A copy of the handmade dataset, to be changed."""
    return Path(shutil.copytree(dataset_path, tmp_path / "mine"))


@pytest.fixture(scope="session")
def split_path(dataset_path, tmp_path_factory) -> Path:
    """A zero-shot split of the handmade dataset whose queries and ads have ids of the user's."""
    folder = tmp_path_factory.mktemp("novel")
    handmade = Dataset(dataset_path)
    tables = {table: with_ids(handmade.read(table), table) for table in ("ads", "queries/test")}
    parent = with_tables(handmade, folder / "parent", tables)
    return make_novel_split(parent.path, folder / "split", NovelSettings(0.3)).path


@pytest.fixture(scope="session")
def encoder_path(tmp_path_factory) -> str:
    """A random two-layer BERT over the dataset's words, as transformers saves it."""
    import torch
    from transformers import BertConfig, BertModel, BertTokenizer

    words = [*COMMON_WORDS, *TOPICS, *(word for topic in TOPICS.values() for word in topic)]
    vocabulary = [*SPECIAL_TOKENS, *words, "##s", "-"]
    path = str(tmp_path_factory.mktemp("encoders") / "tiny")
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)})
    tokenizer.save_pretrained(path)
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    BertModel(config).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def prepared(dataset_path, encoder_path, tmp_path_factory) -> Prepared:
    """The dataset prepared for the transformer kind of encoder."""
    folder = tmp_path_factory.mktemp("prepared") / "transformer"
    return prepare_in_process(
        Dataset(dataset_path), folder, encoder_path, MAX_LENGTH, add_special_tokens=True
    )


@pytest.fixture(scope="session")
def prepared_bag(dataset_path, encoder_path, tmp_path_factory) -> Prepared:
    """The dataset prepared for the bag kind of encoder."""
    folder = tmp_path_factory.mktemp("prepared") / "bag"
    return prepare_in_process(
        Dataset(dataset_path), folder, encoder_path, MAX_LENGTH, add_special_tokens=False
    )


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory) -> Path:
    """An MLflow store without runs, to be copied: making one takes seconds."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture(scope="session")
def prepared_by_runs(tmp_path_factory) -> Path:
    """Where runs put the data that they prepare, and find what an earlier one has prepared.

    Processes that share the tests share it too.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "prepared_by_runs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def small_run(
    dataset_path,
    encoder_path,
    empty_store,
    prepared_by_runs,
    tmp_path_factory,
) -> RunConfig:
    """A run of a few seconds on the handmade dataset, in a folder of the module's own."""
    output = tmp_path_factory.mktemp("outputs")
    shutil.copy(empty_store, output)
    (output / "prepared").symlink_to(prepared_by_runs)
    weights = {"links": 0.1, "topics": 0.2}
    changes = {
        "dataset": str(dataset_path),
        "output": str(output),
        "encoder.pretrained": encoder_path,
        "regularization.lambda_x": weights,
        "regularization.lambda_z": weights,
        "regularization.adaptive": False,
        "training.epochs": 4,
        "training.global_batch_size": 8,
        "workers.cpus_per_worker": 1,
    }
    return overlay(tiny(), changes)


@pytest.fixture(scope="module")
def config(request, small_run) -> RunConfig:
    """The run of a module, whose ``CHANGES`` are those of a small run."""
    return overlay(small_run, request.module.CHANGES)


@pytest.fixture(scope="module")
def unharmed(cluster, config) -> Any:
    """What the run of a module gives where nothing disturbs it."""
    from ramen_ray.orchestration.run.fit import fit

    return fit(overlay(config, {"name": "unharmed"}))


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster in this process, all of whose CPUs are free.

    It stays for later tests, whose tasks then find processes with their libraries loaded.
    """
    import ray

    if ray.is_initialized() and not _all_is_free():
        groups = ray.util.placement_group_table()
        warnings.warn(
            f"killed processes took CPUs with them; Ray starts anew: {groups}", stacklevel=1
        )
        ray.shutdown()
    wait_until(lambda: ray.is_initialized() or _start_ray(), "Ray does not start")


def _all_is_free():
    """Wait until no task and no worker of an earlier test has a CPU; says whether none has."""
    import ray

    deadline = time.monotonic() + GIVES_BACK_WITHIN_S
    while ray.available_resources().get("CPU", 0) < NUM_CPUS:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _start_ray():
    """Start Ray, which gives its processes 30 s; says whether they took less."""
    import ray

    try:
        ray.init(address="local", num_cpus=NUM_CPUS, log_to_driver=False, include_dashboard=False)
    except Exception as error:
        ray.shutdown()
        if "timed out during startup" not in str(error):
            raise
        return False
    return True


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Several machines, in place of the cluster in this process."""
    import ray
    from machines import Machines

    from ramen_ray.orchestration.run.processes import START_TIMEOUT

    with pytest.MonkeyPatch.context() as environment:
        environment.delenv(START_TIMEOUT)  # trials have their own, as users' have
        ray.shutdown()  # what another module left
        machines = Machines()
        yield machines
        machines.shut_down()


@pytest.fixture
def joining(cluster) -> dict[str, str]:
    """The environment of a process that joins this process's cluster."""
    import ray

    return {**os.environ, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of its own that holds 256 KB; ``support.resize`` gives it more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture(scope="session")
def output(empty_store, tmp_path_factory) -> Path:
    """A folder whose MLflow store several tests share."""
    output = tmp_path_factory.mktemp("outputs")
    shutil.copy(empty_store, output)
    return output


@pytest.fixture(scope="session")
def shared_store(prepared_bag, encoder_path, output) -> Any:
    """A store of retrievers that are bags, on ``output``."""
    from stores import Store

    return Store(output, prepared_bag, encoder_path)


@pytest.fixture(scope="session")
def store(shared_store) -> Any:
    """The store of a module, in whose place some have their own."""
    return shared_store


@pytest.fixture
def answered_here(monkeypatch):
    """Let this process answer tables of queries, without Ray."""
    from ramen_ray.orchestration.deploy import predict

    def answer(work, missing, num_gpus):
        for number in missing:
            predict.Answer(work, 1)({"partition": number})

    monkeypatch.setattr(predict, "_answer", answer)
    monkeypatch.setattr(predict, "start_ray", lambda: None)
    monkeypatch.setattr(predict.ray, "cluster_resources", dict)


@pytest.fixture(scope="session")
def logged_retriever(shared_store, dataset_path) -> str:
    """The URI of a retriever in the store of ``output``."""
    return shared_store.logged(0.0, dataset_path)


@pytest.fixture(scope="module", autouse=True)
def _no_ray_is_left(request):
    """End the shared cluster before the first module that does not use it: later ones do not."""
    ray = sys.modules.get("ray")
    of_module = [item for item in request.session.items if item.path == request.path]
    if ray and ray.is_initialized() and not any(map(_needs_cluster, of_module)):
        ray.shutdown()


@pytest.fixture(scope="module", autouse=True)
def _no_store_is_left():
    """Let the next module find no store: MLflow keeps the one that was used last."""
    yield
    if "mlflow" in sys.modules:
        sys.modules["mlflow"].set_tracking_uri(None)


@pytest.fixture
def run_here(monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    """Runs a job in this process with arguments; returns its exit code and what it printed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def call(job, *arguments):
        monkeypatch.setattr(sys, "argv", ["job.py", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run_job(job.main)
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return call


@pytest.fixture
def done(run_here) -> Callable[..., str]:
    """Runs a job that must succeed; returns what it printed."""

    def call(job, *arguments):
        code, said = run_here(job, *arguments)
        assert code == 0, said
        return said

    return call


@pytest.fixture
def refused(run_here) -> Callable[..., str]:
    """Runs a job that must refuse its arguments; returns what it says last: why, and findings."""

    def call(job, *arguments):
        code, said = run_here(job, *arguments)
        assert code == 2, said
        error = said[said.index(the_error(said)) :].removesuffix("\n")
        assert all(line.startswith("  - ") for line in error.splitlines()[1:]), said
        return error

    return call


@dataclass(frozen=True)
class Head:
    """Where a Ray head node answers."""

    address: str
    dashboard: str


def free_port() -> int:
    """Find a port below the ephemeral ones, many of which Ray uses."""
    while True:
        port = 20_000 + int.from_bytes(os.urandom(2)) % 12_000
        with socket.socket() as listening:
            if listening.connect_ex(("127.0.0.1", port)):
                return port


@pytest.fixture(scope="module")
def s3(tmp_path_factory) -> Iterator[Any]:
    """boto3's client of an S3-compatible store, which the environment names."""
    install = "pip install -e '.[stores]'"
    boto3 = pytest.importorskip("boto3", reason=install)
    pytest.importorskip("moto.server", reason=install)
    log = tmp_path_factory.mktemp("store") / "s3.log"
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    serving = running(command, log, f"{address}/moto-api/")
    with pytest.MonkeyPatch.context() as environment, serving:
        environment.setenv("AWS_ACCESS_KEY_ID", "us")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")  # it is waited for elsewhere
        environment.setenv("AWS_ENDPOINT_URL", address)
        yield boto3.client("s3")


@contextmanager
def running_head(port: int, *flags: str, **environment: str) -> Iterator[Head]:
    """Run a head node of its own on loopback; its port is ``port``."""
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block"]
    dashboard_port = free_port()
    agent_port = free_port()
    command += [f"--port={port}", f"--dashboard-port={dashboard_port}"]
    command += [f"--dashboard-agent-listen-port={agent_port}"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    command += ["--dashboard-host=127.0.0.1", "--node-ip-address=127.0.0.1", *flags]
    inherited = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    process = subprocess.Popen(command, env=inherited | environment, stdout=subprocess.DEVNULL)
    yield Head(f"127.0.0.1:{port}", f"http://127.0.0.1:{dashboard_port}")
    started = psutil.Process(process.pid).children(recursive=True)
    for child in [*started, process]:
        child.kill()
    process.wait(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head node of its own, with two CPUs."""
    with running_head(free_port(), "--num-cpus=2") as head:
        yield head
