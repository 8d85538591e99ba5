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
    assert "\nwarning: ads.parquet, row 38, column 'text': text that an earlier ad has" in out
    assert ": edge that joins a held-out query to its answer (1 of " in out


def test_errors_come_first_and_end_in_exit_code_1(copied, tmp_path, run_here):
    set_cells("edges/links/ad", "weight", 3, -1.0)(copied)
    set_cells("ads", "text", 2, "\tword [bold]\x07")(copied)
    findings = tmp_path / "findings.json"
    code, out = run_here(job, copied, "--json-file", findings)
    lines = [line for line in out.splitlines() if line.startswith(("error:", "warning:"))]
    assert code == 1
    assert [line.split(":")[0] for line in lines] == ["error"] + ["warning"] * 6
    assert lines[0] == (
        "error: edges/links/ad.parquet, row 3, column 'weight': weight that is not a positive "
        "number: -1; give it a positive number, or leave it out"
    )
    assert out.endswith("errors: 1, warnings: 6\n")
    written = json.loads(findings.read_text())
    assert [finding["severity"] for finding in written] == ["error"] + ["warning"] * 6
    assert (written[0]["row"], written[0]["column"]) == (3, "weight")
    assert written[0]["file"] == "edges/links/ad.parquet"


def test_findings_that_cannot_be_written_are_one_clear_line(copied, refused):
    file = copied / "nowhere" / "findings.json"
    said = refused(job, copied, "--json-file", file)
    assert said == f"error: --json-file {file}: No such file or directory"


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
    assert "spare.parquet: the dataset directory has no table 'spare'" in logged[0][0]
    assert "queries/test.parquet, row 0, column 'text': text that looks damaged" in logged[0][2]
    num_warnings = sum(one.severity == "warning" for one in validate(Dataset(copied)))
    assert logged[0][5] == f"and {num_warnings - 5} more: python jobs/validate.py {copied}"
    unknown, repeated = logged[0][6:]
    assert "of the tokens are unknown" in unknown and "the tokens of an earlier one" in repeated
    moved = copied.rename(copied.parent / "moved")
    with caplog.at_level(logging.WARNING, pipeline.__name__):
        _prepare(moved, encoder_path)
    found = [record.getMessage() for record in caplog.records]
    assert found == [line.replace(str(copied), str(moved)) for line in logged[0]]
    assert len(list((copied.parent / "cache").glob("[!.]*"))) == 1
