"""Which retrievers become the champion, which do not, and how to undo it."""

import functools
import itertools
import json
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from stores import BLIND, choose
from support import with_tables

from jobs import promote
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.data.store.schemas import JUDGEMENTS
from ramen_ray.data.tables.new_ads import NewAds
from ramen_ray.method.metrics.comparison import paired_differences
from ramen_ray.orchestration.deploy import comparing
from ramen_ray.orchestration.deploy.extend import extend_retriever
from ramen_ray.tracking.aliases import holder_of, restore
from ramen_ray.tracking.registry import WINNER, RegistryError
from ramen_ray.tracking.runs import open_run


@pytest.fixture(scope="module")
def good(store, dataset_path):
    return store.run(0.0, dataset_path)


@pytest.fixture(scope="module")
def bad(store, dataset_path):
    return store.run(BLIND, dataset_path)


@pytest.fixture
def job(store, run_here):
    return lambda *words: run_here(promote, *words, "--output", store.output)


@pytest.fixture
def promoted(store, done):
    return lambda *words: done(promote, *words, "--output", store.output)


def _champion(store, name):
    return store.client.get_model_version_by_alias(name, "champion").run_id


def test_only_a_better_retriever_replaces_the_champion_and_it_can_be_restored(
    store, job, promoted, good, bad, tmp_path
):
    printed = promoted(bad, "--name", "shop")
    assert printed.startswith("shop@champion is version 1: the first of its name\nnext: ")
    (tmp_path / "run.json").write_text(json.dumps({"mlflow_run_id": good}))
    printed = promoted(str(tmp_path), "--name", "shop")
    assert "against version 1 on the test split" in printed.splitlines()[-2]
    assert "R@100" in printed
    assert _champion(store, "shop") == good
    for metric in ("P@1", "tail/R@10"):
        code, printed = job(bad, "--name", "shop", "--metric", metric)
        assert code == 3, "no error, and not promoted"
        assert printed.splitlines()[-2].startswith(f"version 1 is not promoted: {metric} -")
    assert _champion(store, "shop") == good
    assert promoted(good, "--name", "shop").startswith("shop@champion is version 2: as before\n")
    code, printed = job(good, "--name", "shop@challenger")
    assert (code, printed) == (2, "error: this retriever is the champion already: version 2\n")
    promoted(bad, "--name", "shop", "--force")
    assert _champion(store, "shop") == bad
    printed = promoted("--restore", "--name", "shop")
    assert printed.startswith("shop@champion is version 2 again, no longer version 1\nnext: ")
    assert _champion(store, "shop") == good
    described = store.client.get_model_version("shop", "2").description
    assert described.startswith("R@10 +")


JUDGED = {  # grades of an ad that was clicked, and of another; and how many queries are judged
    "the better is bad": ((0.0, 1.0), 12, 3, "its bad@5 is higher: +"),
    "hardly any": ((1.0, 0.0), 1, 3, "5 answers are judged"),
    "the better is good": ((1.0, 0.0), 12, 0, "P@1 +"),
    "none": ((), 0, 3, "bad@5 needs judgements"),
}


@pytest.mark.parametrize("case", JUDGED)
def test_judgements_can_veto_what_clicks_prefer(case, job, good, bad, dataset_path, tmp_path):
    grades, num_judged, expected, told = JUDGED[case]
    parent = Dataset(dataset_path)
    rows = [
        (query["query_id"], ad, "human", grades[ad not in query["ad_ids"]])
        for query in parent.read("queries/test").to_pylist()[:num_judged]
        for ad in range(parent.num_rows("ads"))
    ]
    tables = {}
    if rows:
        tables["judged/test"] = pa.table([*zip(*rows, strict=True)], JUDGEMENTS.names)
    judged = with_tables(parent, tmp_path / "judged", tables).path
    to = ("--name", case.replace(" ", "-"), "--metric", "P@1", "--test", judged)
    assert job(bad, *to)[0] == 0
    code, printed = job(good, *to, "--veto", "bad@5")
    assert (code, told in printed) == (expected, True), printed
    assert ("vetoed" in printed) == bool(expected)
    if expected:
        assert job(good, *to, "--veto", "bad@5", "--force")[0] == 0


@pytest.fixture(scope="module")
def logged(store, good, bad, dataset_path):
    """Three retrievers: their runs and models."""
    registry = store.registry
    runs = good, bad, store.run(BLIND, dataset_path)
    return [registry.find_logged(run, None) for run in runs]


@pytest.mark.parametrize(
    ("chosen", "by_hand", "deleted", "restored"),
    [
        ([1, 2, 3], None, None, [2, 1]),
        ([1, 2, 3], 2, None, [3, 2, 1]),
        ([1, 2, 1], None, None, [2, 1]),
        ([], 2, None, []),
        ([1, 2, 3], None, 2, [1]),
        ([1, 2], 3, 2, [1]),
        ([1], None, 1, []),
    ],
)
def test_restoring_gives_back_the_version_before_that_is_there_whoever_chose_it(
    chosen, by_hand, deleted, restored, store, logged
):
    registry = store.registry
    client = store.client
    name = f"chosen-{chosen}-{by_hand}-{deleted}".replace(", ", "-")
    for found in logged:
        registry.register(name, *found)
    for number in chosen:
        choose(registry, name, *logged[number - 1])
    if by_hand:
        client.set_registered_model_alias(name, "champion", str(by_hand))
    if deleted:
        client.delete_model_version(name, str(deleted))
    for number in restored:
        assert restore(registry, name, "champion")[1].version == str(number)
    with pytest.raises(RegistryError, match="is known to have had"):
        restore(registry, name, "champion")


def _killed_at(write, registry, patched):
    """Let the process be killed before its write of this number, from 0, to alias or history."""
    number = itertools.count()

    def killed(call, *values):
        if next(number) == write:
            raise KeyboardInterrupt
        call(*values)

    for name in ("set_registered_model_tag", "set_registered_model_alias"):
        call = getattr(registry.client, name)
        patched.setattr(registry.client, name, functools.partial(killed, call))


@pytest.mark.parametrize("write", [0, 1, 2])
def test_a_process_that_is_killed_while_it_moves_an_alias_leaves_a_true_history(
    write, store, logged
):
    registry = store.registry
    name = f"killed-{write}"
    first, second, third = logged
    choose(registry, name, *first)
    registry.register(name, *second)
    store.client.set_registered_model_alias(name, "champion", "2")  # by hand
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        _killed_at(write, registry, patched)
        choose(registry, name, *third)
    given = ("1", "2", "3")
    assert holder_of(registry, name, "champion").history == given[: 3 if write == 2 else 2]
    choose(registry, name, *third)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        _killed_at(write, registry, patched)
        restore(registry, name, "champion")
    left = given[: 2 if write == 2 else 3]
    assert holder_of(registry, name, "champion").history == left
    assert restore(registry, name, "champion")[1].version == left[-2]


def _state(store, name):
    model = store.client.get_registered_model(name)
    versions = store.client.search_model_versions(f"name = '{name}'")
    return model.aliases, model.tags, [(one.version, one.source) for one in versions]


@pytest.mark.parametrize(
    ("how", "named"),
    [("promoted", "challenger"), ("extended", "champion"), ("deleted", "champion")],
)
def test_a_champion_that_moves_while_it_is_compared_is_not_replaced(
    how, named, store, job, promoted, logged, tmp_path, monkeypatch
):
    registry = store.registry
    name = f"moved-{how}-{named}"
    good, bad, third = logged
    choose(registry, name, *third)
    choose(registry, name, *bad)
    ads = tmp_path / "ads.csv"
    ads.write_text("ad_id,text\nnew-1,a robin\nnew-2,an oak\n")
    moves = {
        "promoted": lambda: choose(registry, name, *third),
        "extended": lambda: extend_retriever(
            registry, f"models:/{name}@champion", NewAds(str(ads)), store.output
        ),
        "deleted": lambda: store.client.delete_model_version(name, "2"),
    }
    left = []

    def meanwhile(*measured):
        if not left:
            moves[how]()
            left.append(_state(store, name))
        return paired_differences(*measured)

    with monkeypatch.context() as patched:
        patched.setattr(comparing, "paired_differences", meanwhile)
        code, printed = job(good[0], "--name", f"{name}@{named}")
    assert code == 2
    assert f"{name}@champion" in printed
    assert _state(store, name) == left[0]
    printed = promoted(good[0], "--name", f"{name}@{named}")
    assert ("2 lost" if how == "extended" else "0 lost") in printed
    assert store.client.get_model_version_by_alias(name, named).run_id == good[0]


def test_if_the_champion_is_deleted_the_last_that_is_there_is_to_be_beaten(
    store, job, promoted, good, bad, tmp_path
):
    (tmp_path / "ended.csv").write_text("ad_id\n0\n")
    ended = NewAds(remove=str(tmp_path / "ended.csv"))
    registry = store.registry
    promoted(good, "--name", "gone")
    extend_retriever(registry, "models:/gone@champion", ended, store.output)
    store.client.delete_model_version("gone", "2")
    code, printed = job(bad, "--name", "gone")
    assert code == 3
    assert "against version 1 on the test split" in printed
    assert "version 1 was the last" in printed
    printed = promoted("--restore", "--name", "gone")
    assert printed.startswith("version 2 is deleted, and passed over\ngone@champion is version 1")
    promoted(bad, "--name", "gone", "--force")
    for number in "13":
        store.client.delete_model_version("gone", number)
    code, printed = job(good, "--name", "gone")
    assert code == 2
    assert "version 1, 3; --force" in printed
    assert job("--restore", "--name", "gone")[0] == 2
    promoted(good, "--name", "gone", "--force")
    assert holder_of(registry, "gone", "champion").version == "4"


def test_of_a_sweep_the_best_child_is_promoted(store, job, promoted, dataset_path):
    parent = open_run(store.uri, "tests", "sweep", store.output)
    store.run(3.0, dataset_path, parent)
    best = store.run(0.5, dataset_path, parent)
    store.run(2.0, dataset_path, parent)
    printed = promoted(parent.id, "--name", "swept")
    assert printed.startswith("best finished run: noise-0.5, validation R@10 66.67\n")
    assert _champion(store, "swept") == best
    parent.log_metrics({"best/validation/R@10": 0.7})  # of a trial that failed
    other = open_run(store.uri, "tests", "with finalists", store.output)
    store.run(0.5, dataset_path, other)
    chosen = store.run(2.0, dataset_path, other)
    other.log_parameters({}, {WINNER: chosen})
    assert promoted(other.id, "--name", "decided").startswith("the sweep's finalist: noise-2.0\n")
    assert _champion(store, "decided") == chosen
    _, printed = job(parent.id, "--name", "swept-again")
    assert printed.startswith(
        "best finished run: noise-0.5, validation R@10 66.67; the sweep's best, 70.00, ended "
        "without a retriever\n"
    )


@pytest.mark.parametrize("broken", ["files", "kind", "dataset"])
def test_a_champion_that_cannot_be_compared_is_replaced_by_force(
    broken, store, promoted, refused, dataset_path, tmp_path
):
    dataset = Path(shutil.copytree(dataset_path, tmp_path / "dataset"))
    better = store.run(0.0, dataset)
    name = f"broken-{broken}"
    registry = store.registry
    run_id, model_id = registry.find_logged(store.run(1.0, dataset), None)
    number = choose(registry, name, run_id, model_id)
    if broken == "kind":
        number = store.client.create_model_version(name, f"runs:/{run_id}/other").version
        store.client.set_registered_model_alias(name, "champion", number)
    files = Path(store.client.get_logged_model(model_id).artifact_location.removeprefix("file://"))
    if broken == "files":
        shutil.rmtree(files)
    elif broken == "dataset":
        dataset.rename(tmp_path / "moved")
    error = refused(promote, better, "--name", name, "--output", store.output)
    assert f"version {number}: " in error
    assert "--force" in error
    printed = promoted(better, "--name", name, "--force")
    assert "by force: " in printed
    assert _champion(store, name) == better


def test_a_model_keeps_the_name_that_it_has(store, promoted, good):
    store.client.create_registered_model("our shop")
    said, command = promoted(good, "--name", "our shop").splitlines()
    assert said == "our shop@champion is version 1: the first of its name"
    assert "models:/our shop@champion" in shlex.split(command)
    assert store.registry.look_up("models:/our shop@champion").run_id == good
