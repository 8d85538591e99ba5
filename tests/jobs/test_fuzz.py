"""Random bytes and random tables through the commands: an answer or one line, never a traceback."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_datasets import JSON
from support import import_in_process

from jobs import train, validate
from ramen_ray.data.tables.clicks.settings import UserTables
from ramen_ray.errors import UserError

NAMES = ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.parquet", "a.csv.gz"]
ROW = st.fixed_dictionaries({"query": JSON, "ad": JSON})
TABLES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=200).map(lambda text: b"query,ad\n" + text.encode("utf-8", "surrogatepass")),
    st.lists(ROW, max_size=8).map(lambda rows: "\n".join(map(json.dumps, rows)).encode()),
    st.binary(max_size=60).map(lambda rest: b"PAR1" + rest + b"PAR1"),
)


def _import(name, content, folder):
    """Import a table as the command does, but for Ray."""
    (folder / name).write_bytes(content)
    try:
        import_in_process(UserTables(str(folder / name)), folder / "out")
    except UserError as error:
        assert "Traceback" not in str(error)
        assert [path.name for path in folder.iterdir()] == [name]


def _validate(content, run_here, folder):
    (folder / "dataset.json").write_bytes(content)
    (folder / "ads.parquet").write_bytes(content)
    assert run_here(validate, folder)[0] == 2
    (folder / "dataset.json").write_text('{"format_version": 1, "name": "mine"}')
    code, printed = run_here(validate, folder)
    assert code == 1
    assert "Traceback" not in printed


def _train(content, run_here, folder):
    (folder / "config.json").write_bytes(content)
    code, printed = run_here(train, "--config", folder / "config.json", "--print-config")
    assert code == 2
    assert printed.startswith("error: ")


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_random_files(count, run_here, tmp_path_factory):
    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(NAMES), TABLES)
    def check(name, content):
        _import(name, content, tmp_path_factory.mktemp("import"))
        _validate(content, run_here, tmp_path_factory.mktemp("validate"))
        _train(content, run_here, tmp_path_factory.mktemp("train"))

    check()
