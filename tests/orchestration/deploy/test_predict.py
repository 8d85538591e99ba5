"""Tables of queries answered, and ads added after training."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from filelock import FileLock
from pyarrow.fs import LocalFileSystem
from ray.util.placement_group import placement_group
from support import NUM_CPUS, table_with_code

from jobs import index, predict
from ramen_ray.answering.requests import MAX_CHARACTERS, MAX_QUERY_CHARACTERS
from ramen_ray.answering.retriever import Retriever
from ramen_ray.data.store.dataset import Dataset, DatasetError
from ramen_ray.method.retrieval import shards
from ramen_ray.orchestration.cluster import resources
from ramen_ray.orchestration.cluster.resources import no_placement_group_left
from ramen_ray.orchestration.deploy import predict as answering
from ramen_ray.orchestration.deploy import prediction_files
from ramen_ray.orchestration.deploy.prediction_files import partitions
from ramen_ray.orchestration.deploy.retrievers import take_place
from ramen_ray.tracking.aliases import MovedError
from ramen_ray.tracking.registry import LoggedRetriever

CHAMPION = "models:/answering@champion"


@pytest.fixture(scope="module")
def store(store, dataset_path):
    """The store with a champion."""
    store.champion("answering", 0.0, dataset_path)
    return store


@pytest.fixture
def words(store, monkeypatch):
    """Returns the words of a command that uses the store."""
    # one process: each takes seconds to start
    monkeypatch.setattr(answering, "CPUS_PER_ACTOR", NUM_CPUS)

    def words_of(**flags):
        given = {**flags, "output": store.output}
        return [word for name, value in given.items() for word in (f"--{name}", value) if word]

    return words_of


@pytest.fixture(scope="module")
def queries(tmp_path_factory, dataset_path):
    """Two files with five row groups; three of the rows are not queries."""
    folder = tmp_path_factory.mktemp("queries")
    texts = Dataset(dataset_path).read("queries/train")["text"].to_pylist()[:42]
    texts[3] = ""
    texts[17] = None
    texts[30] = "x" * 10_001
    table = pa.table({"day": range(42), "text": texts})
    pq.write_table(table.slice(0, 20), folder / "a.parquet", row_group_size=8)
    pq.write_table(table.slice(20), folder / "b.parquet", row_group_size=11)
    return folder


def test_a_table_is_answered_and_an_interrupted_call_resumes(
    cluster, store, words, done, refused, queries, tmp_path, monkeypatch
):
    monkeypatch.setattr(prediction_files, "QUERIES_PER_PARTITION", 8)
    answers = tmp_path / "answers"
    table = Path(shutil.copytree(queries, tmp_path / "queries"))
    flags = {"model": CHAMPION, "queries": table, "answers": answers, "top-k": 3}
    not_utf8 = pa.array([b"robin", b"caf\xe9"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"day": [42, 43], "text": not_utf8}), table / "c.parquet")
    printed = done(predict, *words(**flags))
    assert f"answers: {answers} (44 queries, 4 of them with an error)\nnext: " in printed
    written = sorted(answers.glob("*.parquet"))
    assert [pq.read_metadata(part).num_rows for part in written] == [8, 8, 4, 8, 3, 8, 3, 2]
    *parts, last = written
    errors = pq.read_table(last, columns=["error"])["error"].to_pylist()
    assert errors == [None, "the query is bytes, not a text"]
    found = _answers_as_served(store, parts, top_k=3)
    assert found["day"].to_pylist() == list(range(42))
    errors = found["error"].to_pylist()
    assert [row for row, error in enumerate(errors) if error] == [3, 17, 30]

    before = {part.name: part.read_bytes() for part in written}
    stamps = {part.name: part.stat().st_mtime_ns for part in written}
    parts[2].unlink()
    os.truncate(parts[4], len(before[parts[4].name]) // 2)
    done(predict, *words(**flags))
    again = sorted(answers.glob("*.parquet"))
    assert {part.name: part.read_bytes() for part in again} == before
    rewritten = [part.name for part in again if part.stat().st_mtime_ns != stamps[part.name]]
    assert rewritten == [parts[2].name, parts[4].name]

    def assert_refused(differs, **changed):
        error = refused(predict, *words(**(flags | changed)))
        assert f"{answers} " in error and f": {differs} (" in error

    assert_refused("top_k", **{"top-k": 4})
    retriever = store.registry.look_up(CHAMPION)
    location = store.client.get_logged_model(retriever.model_id).artifact_location
    weights = next(Path(location.removeprefix("file://")).rglob("*.safetensors"))
    with _changed(weights, -1):
        assert weights.name in refused(predict, *words(**flags))
    os.utime(table / "b.parquet")
    assert_refused("queries")
    assert {file.name: file.read_bytes() for file in answers.glob("*.parquet")} == before
    assert {file.name for file in answers.iterdir()} == {".lock", ".call.json", *before}


def test_a_table_of_text_files_is_answered_as_one_of_parquet(
    answered_here, store, words, done, refused, queries, tmp_path, monkeypatch
):
    monkeypatch.setattr(prediction_files, "QUERIES_PER_PARTITION", 16)
    answers = tmp_path / "answers"
    table = tmp_path / "queries"
    table.mkdir()
    first, second = (pq.read_table(file) for file in sorted(queries.glob("*.parquet")))
    first.to_pandas().to_csv(table / "a.csv.gz", index=False)
    second.to_pandas().to_json(table / "b.jsonl", orient="records", lines=True)
    flags = {"model": CHAMPION, "queries": table, "answers": answers, "top-k": 3}
    answer = answering._answer

    def is_interrupted(work, missing, num_gpus):
        answer(work, missing[:1], num_gpus)
        raise DatasetError("no machine is left")

    with monkeypatch.context() as patched:
        patched.setattr(answering, "_answer", is_interrupted)
        assert "no machine is left" in refused(predict, *words(**flags))
    (part,) = answers.glob("part-*.parquet")
    was_written = part.stat().st_mtime_ns
    with monkeypatch.context() as patched:  # the rows are not read again
        patched.setattr("ramen_ray.orchestration.deploy.prediction_files.UserTable", None)
        printed = done(predict, *words(**flags))
    assert "(42 queries, 3 of them with an error)" in printed
    assert part.stat().st_mtime_ns == was_written
    parts = sorted(answers.glob("part-*.parquet"))
    assert not [file for file in answers.iterdir() if file.name.startswith(".queries")]
    as_served = _answers_as_served(store, parts, top_k=3)
    assert as_served["day"].to_pylist() == [str(day) for day in range(42)]
    texts = [text or None for text in pa.concat_tables([first, second])["text"].to_pylist()]
    assert as_served["text"].to_pylist() == texts

    def changes(*_):
        (table / "c.csv").write_text("day,text\n42,robin\n")

    monkeypatch.setattr(answering, "_answer", changes)
    flags["answers"] = tmp_path / "others"
    assert str(table) in refused(predict, *words(**flags))
    assert not list(flags["answers"].glob("part-*.parquet"))


def _answers_as_served(store, parts, top_k):
    """Read answers, which are those of the retriever."""
    found = pq.read_table(parts)
    assert found.column_names == ["day", "text", "ad_ids", "ads", "scores", "error"]
    expected = store.registry.load(CHAMPION).answer(found["text"].to_pylist(), top_k)
    for name in ("ad_ids", "ads", "error"):
        assert found[name].to_pylist() == expected[name].to_pylist()
    of_both = (table["scores"].to_pylist() for table in (found, expected))
    for scores, wanted in zip(*of_both, strict=True):
        np.testing.assert_allclose(scores, wanted, atol=1e-6)
    return found


@contextmanager
def _changed(file, place):
    """Change a byte of a file, but neither its size nor its time."""
    before = file.read_bytes()
    stamp = file.stat()
    changed = bytearray(before)
    changed[place] ^= 1
    file.write_bytes(changed)
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    try:
        yield
    finally:
        file.write_bytes(before)


@pytest.mark.slow
def test_a_retriever_in_shards_answers_as_a_whole_one_with_the_cpus_that_are_free(
    cluster, store, words, done, queries, tmp_path, monkeypatch
):
    monkeypatch.setattr(prediction_files, "QUERIES_PER_PARTITION", 8)
    monkeypatch.setattr(shards, "ADS_PER_PRODUCT", 16)  # three shards
    monkeypatch.setattr(resources, "PATIENCE_S", 1)
    table = tmp_path / "queries"
    answers = tmp_path / "answers"
    shutil.copytree(queries, table)
    pq.write_table(pa.table({"day": [42, 43], "text": ["", None]}), table / "c.parquet")
    flags = {
        "model": CHAMPION,
        "queries": table,
        "answers": answers,
        "top-k": 5,
        "gb-per-shard": 1e-9,
    }
    with no_placement_group_left():  # others hold CPUs
        ray.get(placement_group([{"CPU": NUM_CPUS - 1}]).ready())
        printed = done(predict, *words(**flags))
    assert f"answers: {answers} (44 queries, 5 of them with an error)\nnext: " in printed
    parts = sorted(answers.glob("*.parquet"))
    _answers_as_served(store, parts, top_k=5)


def _work(store, texts, folder, **of_table):
    """What processes know that are to answer texts."""
    queries = str(folder / "queries.parquet")
    pq.write_table(pa.table({"text": texts}), queries, **of_table)
    retriever = store.registry.download(CHAMPION, folder / "retriever")
    pieces = partitions({queries: LocalFileSystem()})
    answers = prediction_files.Answers(folder, folder / "aside", pieces)
    (folder / "aside").mkdir()
    return answering.Work(prediction_files.Asked(queries, 3), answers, retriever)


def test_any_number_of_processes_may_load_the_retriever_at_once(store, tmp_path, monkeypatch):
    work = _work(store, ["robin", "oak"], tmp_path, row_group_size=1)
    marks = []

    def load(*given):
        marks.append({file.name for file in work.answers.aside.iterdir()})
        return Retriever(*given)

    code = SimpleNamespace(Retriever=load)
    monkeypatch.setattr("ramen_ray.tracking.registry.code_of", lambda _: code)
    for partition in (0, 1):
        answering.Answer(work, 1)({"partition": partition})
    first, second = marks
    assert not first & second, "deaths of one count against the other"


def test_queries_that_are_too_long_together_are_answered(store, tmp_path):
    number = MAX_QUERY_CHARACTERS // MAX_CHARACTERS + 1
    work = _work(store, ["robin ".ljust(MAX_CHARACTERS, "x")] * number, tmp_path)
    answering.Answer(work, 1)({"partition": 0})
    assert work.answers.counts() == [(number, 0)]


def test_no_code_in_a_table_of_queries_is_run(words, refused, tmp_path):
    queries = tmp_path / "queries.parquet"
    model = "models:/answering/1"
    pq.write_table(table_with_code(tmp_path / "was_run", "struct"), queries)
    call = words(model=model, queries=queries, answers=tmp_path / "answers")
    message = "'code.inner' (ray.data.arrow_pickled_object)"
    assert message in refused(predict, *call)
    refused(predict, *call, "--columns.query-text", "code")
    assert message in refused(index, *words(model=model, ads=queries))
    assert not (tmp_path / "was_run").exists()


def test_a_folder_of_others_is_left_alone(words, refused, queries, tmp_path):
    written = tmp_path / "written"
    taken = tmp_path / "taken"
    written.mkdir()
    call = {"model": "models:/answering/1", "queries": queries}
    with FileLock(written / ".lock"):
        error = refused(predict, *words(**call, answers=written))
    assert str(written) in error
    taken.mkdir()
    pq.write_table(pa.table({"error": ["none of ours"]}), taken / "part-000000.parquet")
    before = (taken / "part-000000.parquet").read_bytes()
    error = refused(predict, *words(**call, answers=taken))
    assert str(taken) in error
    assert [file.read_bytes() for file in taken.glob("*.parquet")] == [before]


def test_a_cluster_without_room_is_reported(
    cluster, words, refused, queries, tmp_path, monkeypatch
):
    monkeypatch.setattr(resources, "MOMENT_S", 0)
    monkeypatch.setattr(resources, "PATIENCE_S", 0)
    call = words(model=CHAMPION, queries=queries, answers=tmp_path / "answers")
    with no_placement_group_left():  # others hold all CPUs
        ray.get(placement_group([{"CPU": NUM_CPUS}]).ready())
        error = refused(predict, *call)
    assert f" {NUM_CPUS / 4:g} CPUs and 1.1 GB of memory free in 0 s" in error
    monkeypatch.setattr(answering, "BYTES_PER_PROCESS", 10**14)  # more would overflow in Ray
    monkeypatch.setattr(shards, "ADS_PER_PRODUCT", 16)
    error = refused(predict, *call, "--gb-per-shard", 1e-9)
    assert " 0.48 CPUs and 100001.6 GB " in error and " 3 with shards" in error
    monkeypatch.setattr(LoggedRetriever, "uses_gpu", True)
    on_gpu = f" {NUM_CPUS / 4:g} CPUs and 1 GPUs and 100000.0 GB "
    assert on_gpu in refused(predict, *call, "--use-gpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top-k": 41}, "top_k 41"),
        ({"use-gpu": ""}, "CPUs only"),
        ({"columns.query-text": "query"}, "'query'"),
        ({"queries": "{csv}"}, "{csv}, row 3: "),
        ({"queries": "{csv}", "encoding": "ascii"}, "{csv}, row 4: "),
        ({"queries": "{taken}"}, "'error'"),
        ({"answers": "{csv}"}, "{csv}"),
    ],
)
def test_bad_input_is_one_clear_line(changes, message, words, refused, queries, tmp_path):
    csv = tmp_path / "queries.csv"
    taken = tmp_path / "taken.parquet"
    csv.write_text("text\nrobin\nfinch, heron\ncafé\n")
    pq.write_table(pa.table({"text": ["robin"], "error": [1]}), taken)
    named = {"csv": csv, "taken": taken}
    flags = {"model": CHAMPION, "queries": queries, "answers": tmp_path / "answers"}
    flags |= {name: str(value).format(**named) for name, value in changes.items()}
    assert message.format(**named) in refused(predict, *words(**flags))
    assert not list(tmp_path.glob("answers/*.parquet"))


def test_an_alias_that_was_moved_meanwhile_is_left_alone(store, dataset_path):
    registry = store.registry
    derived = store.champion("derived", 0.3, dataset_path)
    original, chosen = (store.champion("moving", noise, dataset_path) for noise in (0.1, 0.2))
    with pytest.raises(MovedError, match="moving@champion"):
        take_place(registry, derived, original, "models:/moving@champion", "a copy")
    assert registry.look_up("models:/moving@champion") == chosen
    assert len(store.client.search_model_versions("name = 'moving'")) == 2
