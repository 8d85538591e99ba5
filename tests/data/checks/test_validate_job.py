"""Findings as people see them: in jobs/validate.py, and in the log of a training job."""

import json
import logging
from pathlib import Path

from breaking import set_cells
from support import MAX_LENGTH

from jobs import validate as job
from ramen_ray.data.checks.validation import validate
from ramen_ray.data.prepared.folder import Prepared
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.method.model.pretrained import load_tokenizer, text_tokenizer
from ramen_ray.orchestration.prepare import pipeline


def test_warnings_alone_end_in_exit_code_0(copied, done):
    out = done(job, copied)
    *_, closing, hint = out.splitlines()
    assert closing == "errors: 0, warnings: 5"
    assert hint == f"next: python jobs/describe.py {copied}"
    assert "│ queries/train      │   60 │" in out
    assert "\nwarning: ads.parquet, row 38, column 'text': " in out


def test_errors_come_first_and_end_in_exit_code_1(copied, tmp_path, run_here):
    set_cells("edges/links/ad", "weight", 3, -1.0)(copied)
    set_cells("ads", "text", 2, "\tword [bold]\x07")(copied)
    findings = tmp_path / "findings.json"
    code, out = run_here(job, copied, "--json-file", findings)
    lines = [line for line in out.splitlines() if line.startswith(("error:", "warning:"))]
    assert code == 1
    assert [line.split(":")[0] for line in lines] == ["error"] + ["warning"] * 6
    assert lines[0].startswith("error: edges/links/ad.parquet, row 3, column 'weight': ")
    assert out.endswith("errors: 1, warnings: 6\n")
    written = json.loads(findings.read_text())
    assert [finding["severity"] for finding in written] == ["error"] + ["warning"] * 6
    place = {"file": "edges/links/ad.parquet", "row": 3, "column": "weight"}
    assert place.items() <= written[0].items()


def test_findings_that_cannot_be_written_are_one_clear_line(copied, refused):
    file = copied / "nowhere" / "findings.json"
    assert f"--json-file {file}: " in refused(job, copied, "--json-file", file)


def _prepare(path: Path, encoder: Path) -> Prepared:
    tokenizer = text_tokenizer(load_tokenizer(str(encoder)), MAX_LENGTH, True)
    return pipeline.prepare(Dataset(path), path.parent / "cache", tokenizer)


def test_a_job_logs_warnings_of_a_dataset_once(cluster, copied, encoder_path, caplog, monkeypatch):
    set_cells("queries/test", "text", 0, "an old\ufffd heron")(copied)
    (copied / "spare.parquet").write_bytes(b"")
    monkeypatch.setattr(pipeline, "MAX_WARNINGS_SHOWN", 5)
    logged = []
    for _ in range(2):
        with caplog.at_level(logging.WARNING, pipeline.__name__):
            _prepare(copied, encoder_path)
        logged.append([record.getMessage() for record in caplog.records])
        caplog.clear()
    assert logged[1] == []
    assert "spare.parquet" in logged[0][0]
    assert "queries/test.parquet, row 0, column 'text'" in logged[0][2]
    num_warnings = len(validate(Dataset(copied)))
    assert logged[0][5] == f"and {num_warnings - 5} more: python jobs/validate.py {copied}"
    assert len(logged[0]) == 8, "and what the encoder loses of the texts"
    moved = copied.rename(copied.parent / "moved")
    with caplog.at_level(logging.WARNING, pipeline.__name__):
        _prepare(moved, encoder_path)
    found = [record.getMessage() for record in caplog.records]
    assert found == [line.replace(str(copied), str(moved)) for line in logged[0]]
