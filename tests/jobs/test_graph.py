"""The graph job: its anchor sets, its messages, and training with them."""

import json
import shlex

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import errors_in, run_config_of

from jobs import graph
from ramen_ray.data.store.dataset import Dataset

START = 1.7e9


def _log(dataset):
    """80 sessions on one topic each (train queries and ads by number modulo 6), and noise."""
    draw = np.random.default_rng(4)
    queries = dataset.read("queries/train")["text"].to_pylist()
    ads = dataset.read("ads")["text"].to_pylist()
    rows = []
    for session in range(80):
        for second in range(6):
            query = queries[session % 6 + 6 * draw.integers(4)]
            ad = ads[session % 6 + 6 * draw.integers(6)] if second % 2 else ""
            rows.append((f"s{session}", START + 10.0 * second, query, ad))
        rows.append((f"s{session}", START + 30.0, f"novel query {session % 6}", "no such ad"))
    test_query = dataset.read("queries/test")["text"][0].as_py()
    rows += [(f"s{session}", START + 20.0, test_query.upper(), ads[0]) for session in range(80)]
    rows += [("huge", START + second, f"only once {second}", ads[0]) for second in range(3000)]
    rows += [(None, START, queries[0], ads[0]), ("s1", "noon", queries[0], ads[0])]
    rows += [("s1", START, None, ads[0])]
    return pd.DataFrame(rows, columns=["session_id", "time", "query", "ad_id"]).sample(
        frac=1, random_state=0
    )


def test_a_log_becomes_two_anchor_sets_that_a_command_uses(copied, tmp_path, done):
    log = _log(Dataset(copied))
    log.to_csv(tmp_path / "log.csv", index=False)
    printed = done(graph, "co-session", copied, "--sessions", tmp_path / "log.csv").splitlines()
    counts = {line[14:]: int(line[:12].replace(",", "")) for line in printed if line[12:14] == "  "}
    assert counts["sessions"] == 81
    assert counts["sessions cut"] == 1
    assert counts["events dropped"] == 2900
    assert counts["rows of validation and test queries"] == 80
    for what in ("session", "time", "query"):
        assert counts[f"rows without a {what}"] == 1
    assert counts["clicks on unknown ads"] == 80
    command, hint = printed[-2:]
    flags = shlex.split(command.split("jobs/train.py")[1])
    weights = run_config_of(flags).regularization
    assert weights.adaptive and not weights.lambda_x
    assert weights.lambda_z["co_click"] == 3.0
    assert hint.startswith("co_session stays out")
    tried = run_config_of([*flags, *hint.split("try it: ")[1].split()])
    assert tried.regularization.lambda_x == {"co_session": 0.3}
    dataset = Dataset(copied)
    assert errors_in(dataset) == []
    anchors = dataset.read("anchors/co_session")["text"].to_pylist()
    assert {f"novel query {topic}" for topic in range(6)} <= set(anchors)
    held_out = dataset.read("queries/test")["text"][0].as_py()
    assert held_out.lower() not in [text.lower() for text in anchors]
    assert not [text for text in anchors if text.startswith("only once")]
    assert [file.name for file in copied.rglob(".*")] == [".lock"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("session_id,time,query\n", "'ad_id'"),
        ("session_id,time,query,ad_id\n", "Found: nothing"),
        ("session_id,time,query,ad_id\ns1,1.7e9,old robin,\n", "gives no edges"),
        ('session_id,time,query,ad_id\ns1,1.7e9,"old robin,\n', "log.csv, row 2: "),
    ],
)
def test_a_log_without_edges_is_one_clear_error(content, message, copied, tmp_path, refused):
    log = tmp_path / "log.csv"
    log.write_text(content)
    before = json.loads((copied / "dataset.json").read_text())
    assert message in refused(graph, "co-session", copied, "--sessions", log)
    assert json.loads((copied / "dataset.json").read_text()) == before
    assert not list(copied.rglob(".*"))


@pytest.mark.parametrize("command", ["co-session", "similar"])
def test_a_dataset_with_errors_gets_no_graph(command, copied, tmp_path, refused):
    ads = Dataset(copied).read("ads").to_pylist()
    ads[3]["text"] = " "
    pq.write_table(pa.Table.from_pylist(ads), copied / "ads.parquet")
    flags = {
        "co-session": ["--sessions", tmp_path / "log.csv"],
        "similar": [],
    }
    error = refused(graph, command, copied, *flags[command])
    assert "ads.parquet, row 3, column 'text': empty text" in error
    assert not list(copied.rglob(".*"))
