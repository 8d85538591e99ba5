"""Helpers of several tests: tables, clicks, and preparation without Ray."""

import csv
import json
import logging
import multiprocessing
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from html import unescape
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa

from ramen_ray.command_line import parse_with_run_config
from ramen_ray.config import RunConfig, Section, write_config
from ramen_ray.data.checks.structure import check_structure, read_tables
from ramen_ray.data.checks.validation import check, validate
from ramen_ray.data.findings import Finding
from ramen_ray.data.prepared.csr import Csr
from ramen_ray.data.prepared.folder import Prepared, dataset_statistics, measure_texts
from ramen_ray.data.prepared.stages import (
    WHOLE_TABLES,
    edge_rows,
    join_parts,
    text_rows,
    write_parts,
    write_whole_tables,
)
from ramen_ray.data.store.dataset import Dataset, write_dataset
from ramen_ray.data.tables.clicks.import_tables import import_tables
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.data.tables.reading import loading

Ended = TypeVar("Ended")

ROOT = Path(__file__).parent.parent
OTHER_CHOICES = {
    "all": "clicked",
    "bag": "transformer",
    "mean": "cls",
    "auto": "fp32",
    "in_batch": "ance",
    "asynchronous": "synchronous",
    "never": "synchronous",
    "synchronous": "never",
}
MAX_LENGTH = 16
NUM_CPUS = 2  # of the cluster that tests share; Ray Data starts a process on each
PATIENCE_S = 900.0  # a busy machine is waited for
WAITS_FOR_TASKS = {  # added to the preset tiny: shortlists and pruned graphs after every epoch
    "base.kind": "ance",
    "base.refresh_mode": "synchronous",
    "base.shortlist_size": 10,
    "base.num_hard_negatives": 2,
    "pruning.mode": "synchronous",
}
CODE_TYPE = {
    b"ARROW:extension:name": b"ray.data.arrow_pickled_object",
    b"ARROW:extension:metadata": b"",
}


def wait_until(holds: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Wait until ``holds()`` is true; ``what`` says what failed to happen if it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what if isinstance(what, str) else what())
        time.sleep(0.05)


def resize(disk: Path, kilobytes: int) -> None:
    """Give the ``small_disk`` of a test another size."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def the_error(said: str) -> str:
    """Return the only line of a job's output that tells of an error."""
    assert "Traceback" not in said, said
    (line,) = (line for line in said.splitlines() if line.startswith("error:"))
    return line


def begin_training(config: RunConfig, folder: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start the job that trains what a file in ``folder`` configures."""
    file = folder / f"{config.name}.json"
    write_config(config, file)
    command = [sys.executable, "jobs/train.py", "--config", str(file)]
    return subprocess.Popen(command, cwd=ROOT, **options)


def kill_process(*words: str) -> bool:
    """Kill a process below this one whose command has a word; says whether there was one."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if any(word in command for word in words):
                process.kill()
                return True
    return False


def kill_train_worker() -> bool:
    """Kill a worker that trains below this process; says whether there was one."""
    return kill_process("RayTrainWorker", "train_alone")


def meanwhile(disturb: Callable[[], object], job: Callable[[], Ended]) -> Ended:
    """Do a job, and ``disturb()`` in another thread, which must succeed."""
    with ThreadPoolExecutor(1) as pool:
        disturbed = pool.submit(disturb)
        ended = job()
        disturbed.result()
    return ended


def ended_by(number: int, code: str, **environment: str) -> tuple[int, str]:
    """Run code, and send it a signal when it has printed "begun"; returns its code and errors."""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stdout.readline() == "begun\n"
        job.send_signal(number)
        _, said = job.communicate(timeout=PATIENCE_S)
    return job.returncode, said


def run_python(
    *words: str, code: int = 0, cwd: Path = ROOT, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these words; it must end with a code."""
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def run_in_two_processes(worker: Callable[..., None], *arguments: object) -> None:
    """Run ``worker(rank, *arguments)`` in two processes, forked from one that has loaded torch."""
    from torch.multiprocessing import start_processes

    # the last is what transformers loads with its first model: two seconds of each process
    loaded = ["pytest", "support", "short_runs", "transformers.models.bert.modeling_bert"]
    multiprocessing.set_forkserver_preload(loaded)
    start_processes(worker, arguments, nprocs=2, start_method="forkserver")


def answers(url: str) -> bool:
    """Return whether a server answers at ``url``."""
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True


@contextmanager
def running(
    command: Sequence[str], log: Path, url: str, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server, which must answer at ``url``, until the block ends; it writes to ``log``."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True, **options
        )
    try:
        wait_until(lambda: answers(url) or server.poll() is not None, log.read_text)
        assert server.poll() is None, log.read_text()
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=PATIENCE_S)


def errors_in(dataset: Dataset) -> list[str]:
    """List what makes ``dataset`` unusable."""
    return [str(finding) for finding in validate(dataset) if finding.severity == "error"]


def run_config_of(words: Sequence[str]) -> RunConfig:
    """Return the run that the words of a job's command line configure."""
    return parse_with_run_config(Section(), "a job", words)[1]


def another_value(value: Any) -> Any:
    """Return another value than a setting has."""
    match value:
        case None:
            return 1
        case bool():
            return not value
        case int():
            return value * 2 if value else 1
        case float():
            return value / 2 or 0.5
        case tuple():
            return (*value, 1)
    return OTHER_CHOICES.get(value, f"{value}-other")


def write_rows(file: Path, names: str, rows: Iterable[Sequence[Any]]) -> str:
    """Write a user's table, whose columns have these ``names``, as CSV; returns its path."""
    with file.open("w", newline="", encoding="utf-8") as table:
        csv.writer(table, lineterminator="\n").writerows([names.split(), *rows])
    return str(file)


def write_frame(frame: pd.DataFrame, file: Path) -> str:
    """Write a user's table in the format of its file's name; returns its path."""
    match file.name.split(".")[1]:
        case "csv":
            frame.to_csv(file, index=False)
        case "tsv":
            frame.to_csv(file, index=False, sep="\t", quoting=csv.QUOTE_NONE)
        case "jsonl":
            frame.to_json(file, orient="records", lines=True, force_ascii=False)
        case "parquet":
            frame.to_parquet(file, index=False, row_group_size=7)
    return str(file)


def tables_in(path: Path) -> dict[str, pa.Table]:
    """Read all tables of a dataset directory, of which another is to be made."""
    dataset = Dataset(path)
    return {table: dataset.read(table) for table in dataset.tables}


def text_table(id_column: str, texts: Sequence[str]) -> pa.Table:
    """Number ``texts`` from 0."""
    return pa.table({id_column: range(len(texts)), "text": list(texts)})


def query_table(texts: Sequence[str], clicks: Sequence[Sequence[int]]) -> pa.Table:
    """Number queries from 0 and give each the ads of ``clicks``."""
    ad_ids = pa.array([list(ads) for ads in clicks], pa.list_(pa.int64()))
    return text_table("query_id", texts).append_column("ad_ids", ad_ids)


def node_edges(
    id_column: str, anchors: Sequence[Sequence[int]], weights: Sequence[Any] | None = None
) -> pa.Table:
    """List the edges of nodes 0, 1, ... to their ``anchors``; without ``weights`` all weigh 1."""
    nodes = [node for node, linked in enumerate(anchors) for _ in linked]
    flat = [int(anchor) for linked in anchors for anchor in linked]
    weight = [1.0] * len(flat) if weights is None else [float(w) for row in weights for w in row]
    return pa.table({id_column: nodes, "anchor_id": flat, "weight": weight})


def with_ids(rows: pa.Table, prefix: str) -> pa.Table:
    """Give rows a user's ids: the prefix and their numbers."""
    return rows.append_column("source_id", [[f"{prefix}{number}" for number in range(len(rows))]])


def with_tables(dataset: Dataset, folder: Path, tables: Mapping[str, pa.Table]) -> Dataset:
    """Write a dataset with these tables beside its own, or in their place."""
    return write_dataset(folder, {**tables_in(dataset.path), **tables}, name=dataset.name)


def csr_of(rows: Sequence[Sequence[int]]) -> Csr:
    """Build the CSR form of ``rows`` of distinct column ids."""
    pairs = [(row, column) for row, columns in enumerate(rows) for column in columns]
    row_ids, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return Csr.from_pairs(row_ids, columns, len(rows))


def rows_of(csr: Csr) -> list[list[int]]:
    """Read every row of ``csr`` with plain slices."""
    return [csr.indices[a:b].tolist() for a, b in pairwise(csr.indptr.tolist())]


def shares_of(csr: Csr) -> list[list[float]]:
    """Return the share that each entry has of its row's weight."""
    total = csr.cumulative_weights
    weights = np.ones(len(csr.indices)) if total is None else np.diff(total)
    rows = [weights[a:b].tolist() for a, b in pairwise(csr.indptr.tolist())]
    return [[weight / sum(row) for weight in row] for row in rows]


def prepare_in_process(
    dataset: Dataset,
    folder: Path,
    pretrained: str,
    max_length: int,
    add_special_tokens: bool,
    *,
    num_blocks: int = 1,
    vocab_size: int | None = None,
) -> Prepared:
    """Prepare a dataset as the data pipeline does, without Ray.

    The sorted rows of all tables are cut into ``num_blocks`` blocks that are written last to first,
    as tasks may finish in any order.
    """
    from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer

    num_rows = check_structure(dataset)
    check(dataset)
    tokenizer = text_tokenizer(load_tokenizer(pretrained), max_length, add_special_tokens)
    text_tables = []
    edge_tables = []
    for table in read_tables(dataset):
        rows = dataset.read(table)
        if table.startswith("edges/"):
            edge_tables.append(edge_rows(table, rows))
        elif table not in WHOLE_TABLES:
            text_tables.append(text_rows(table, rows, tokenizer))
    blocks = _sorted_blocks(text_tables, ["table", "key"], num_blocks)
    if edge_tables:
        blocks += _sorted_blocks(edge_tables, ["table", "key", "anchor_id"], num_blocks)
    written = [write_parts(block, folder / "parts").to_pylist() for block in reversed(blocks)]
    join_parts([*chain(*written)], folder, num_rows, vocab_size or tokenizer.vocab_size)
    write_whole_tables(folder, dataset)
    names = [rows["table"][0].as_py() for rows in text_tables]
    figures = measure_texts(folder, names, tokenizer.unknown, tokenizer.num_special)
    description = {
        "dataset": str(dataset.path),
        "texts": {table: vars(of_table) for table, of_table in figures.items()},
        "name": dataset.name,
        "anchor_sets": dataset.anchor_sets,
        "statistics": dataset_statistics(dataset),
    }
    (folder / "prepared.json").write_text(json.dumps(description))
    return Prepared(folder)


def _sorted_blocks(tables, keys, num_blocks):
    rows = pa.concat_tables(tables).sort_by([(key, "ascending") for key in keys])
    cuts = np.linspace(0, len(rows), num_blocks + 1).astype(int)
    return [rows[a:b] for a, b in pairwise(cuts.tolist()) if b > a]


def import_in_process(tables: UserTables, output: Path) -> tuple[Dataset, list[Finding]]:
    """Import a user's tables; returns also the findings that were logged."""
    findings: list[Finding] = []
    handler = logging.Handler()
    handler.emit = lambda record: findings.extend(
        argument for argument in record.args or () if isinstance(argument, Finding)
    )
    logger = logging.getLogger(loading.__name__)
    logger.addHandler(handler)
    try:
        return import_tables(tables, output), findings
    finally:
        logger.removeHandler(handler)


@contextmanager
def running_postgres(programs: Path, port: int) -> Iterator[str]:
    """Run a database; yields its address. Postgres refuses root, for whom it is the user postgres.

    ``programs`` is the folder of Postgres' programs.
    """
    user = "postgres" if os.geteuid() == 0 else None

    def run(program, *words):
        command = [str(programs / program), "-D", f"{folder}/data", *words]
        with (folder / "log").open("ab") as log:
            subprocess.run(command, check=True, user=user, cwd=folder, stdout=log, stderr=log)

    with tempfile.TemporaryDirectory(prefix="postgres-", dir="/tmp") as made:
        folder = Path(made)
        if user:
            shutil.chown(folder, user)
        run("initdb", "--username=ramen", "--auth=trust", "--no-sync")
        run("pg_ctl", "-w", "-o", f"-p {port} -h 127.0.0.1 -k {folder}", "start")
        yield f"postgresql://ramen:s3cret@127.0.0.1:{port}/postgres"
        run("pg_ctl", "-m", "immediate", "stop")


class RunsCode:
    """An object that, once unpickled, makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def table_with_code(file: Path, nested: str) -> pa.Table:
    """Make a table with a cell that runs code where its type is registered."""
    cell = pickle.dumps(RunsCode(file))
    inner = pa.field("inner", pa.large_binary(), metadata=CODE_TYPE)
    fields = {
        "plainly": (inner.with_name("code"), cell),
        "struct": (pa.field("code", pa.struct([inner])), {"inner": cell}),
        "list": (pa.field("code", pa.list_(inner)), [cell]),
        "map": (pa.field("code", pa.map_(pa.string(), inner)), [("key", cell)]),
    }
    field, value = fields[nested]
    return pa.table(
        [["a query"], pa.array([value], field.type)], pa.schema([("text", "string"), field])
    )


def evidence(name: str) -> list[dict[str, str]]:
    """Read a table that the docs publish."""
    with (ROOT / "docs" / "evidence" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables_of_page(page: Path) -> dict[str, list[list[str]]]:
    """Read the rows of cells of each table of a report's page, by its title."""
    html = page.read_text(encoding="utf-8")
    tables = {}
    for title, table in re.findall(r"<summary>(.*?)</summary>(.*?)</details>", html, re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)[1:]
        tables[unescape(title)] = [
            [unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)]
            for row in rows
        ]
    return tables


def contents_of(folder: Path) -> dict[str, bytes]:
    """Read all files below ``folder``, by their paths within it."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def unit_rows(count: int, width: int, seed: int) -> np.ndarray:
    """Draw float32 vectors (count, width) of length 1, of all directions alike."""
    rows = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def best_by_a_sort(queries: np.ndarray, ads: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find the ads and scores (queries, k) of the k most similar, equals by splitmix64's order."""
    similarity = queries @ ads.T
    keys = np.array([splitmix64(ad) for ad in range(len(ads))], dtype=np.uint64)
    best = np.lexsort((np.broadcast_to(keys, similarity.shape), -similarity), axis=1)[:, :k]
    return best, np.take_along_axis(similarity, best, 1)


def splitmix64(value: int) -> int:
    """The hash in whose order equally near ads come (Steele et al. 2014), in Python's integers."""
    z = (value + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)
