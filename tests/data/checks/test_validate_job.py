"""Findings as people see them in jobs/validate.py; test_cache has those of a training job."""

import json

from breaking import set_cells

from jobs import validate as job


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
