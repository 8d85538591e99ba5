"""Judging answers: in a browser, through files, and what is told of them at the end."""

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pyarrow.parquet as pq
import pytest
from browser import browser_page, needs_chromium
from serving import serving
from starlette.testclient import TestClient
from support import PATIENCE_S, ROOT, wait_until

from jobs import judge
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.judge.judging import Judging
from ramen_ray.orchestration.judge.page import JudgePage

NUM_QUERIES = 6


@pytest.fixture(scope="module")
def models(store, dataset_path):
    """The URIs of two retrievers, the second worse."""
    return [store.logged(noise, dataset_path) for noise in (0.0, 1.5)]


@pytest.fixture
def words(models, store, dataset_path, tmp_path):
    """The words of a job that judges in the test's folder."""
    settings = {
        "--dataset": dataset_path,
        "--queries": NUM_QUERIES,
        "--judgements": tmp_path / "j",
        "--output": store.output,
    }
    return [*models, *(str(word) for setting in settings.items() for word in setting)]


def _drawn(folder):
    return json.loads((folder / "drawn.json").read_text())


def _grades(folder, name):
    grades = {}
    for line in (folder / f"{name}.jsonl").read_text().splitlines():
        said = json.loads(line)
        grades[said["pair"]] = said["grade"]
    return {pair: grade for pair, grade in grades.items() if grade is not None}


@contextmanager
def _job(words, log):
    """Run the job until the block ends; yields it, and the address of its page."""
    with log.open("wb") as output:
        command = [sys.executable, "jobs/judge.py", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    try:
        wait_until(
            lambda: "judge at: " in log.read_text() or process.poll() is not None, log.read_text
        )
        (url,) = re.findall(r"judge at: (\S+)", log.read_text())
        yield process, url
    finally:
        process.kill()
        process.wait(timeout=PATIENCE_S)


def _press(page, key, done, of):
    page.keyboard.press(key)
    page.get_by_text(f"{done} of {of}", exact=True).wait_for()


@needs_chromium
def test_a_person_judges_by_keys_and_goes_on_after_a_kill(
    words, models, run_here, dataset_path, tmp_path
):
    folder = tmp_path / "j"
    words[words.index("--queries") + 1] = "3"
    run_here(judge, *words, "--export-prompts", tmp_path / "prompts")
    with browser_page() as page:
        drawn = _drawn(folder)
        num_pairs = len(drawn["pairs"])
        with serving(JudgePage(Judging(folder), "judge").server.config.app) as port:
            page.goto(f"http://127.0.0.1:{port}/")
            page.get_by_text(f"0 of {num_pairs}", exact=True).wait_for()
            assert page.locator("h1").text_content() == drawn["queries"][0]["text"]
            page.get_by_label("note").fill("odd u 3")
            page.get_by_label("note").press("Enter")
            _press(page, "3", 1, num_pairs)
            assert json.loads((folder / "judge.jsonl").read_text())["note"] == "odd u 3"
            _press(page, "2", 2, num_pairs)
            _press(page, "u", 1, num_pairs)
            _press(page, "0", 2, num_pairs)
            assert _grades(folder, "judge") == {0: 3, 1: 0}
        page.keyboard.press("1")
        page.get_by_text("Not noted").wait_for()
        with (folder / "judge.jsonl").open("a") as file:
            file.write('{"pair": 2, "gra')  # what was being written
        with _job(words, tmp_path / "log") as (process, url):
            page.goto(url)
            page.get_by_text(f"2 of {num_pairs}", exact=True).wait_for()
            for done in range(3, num_pairs + 1):
                _press(page, str(done % 4), done, num_pairs)
            page.get_by_text("All is judged").wait_for()
            page.get_by_role("button").click()
            assert process.wait(timeout=PATIENCE_S) == 0
    grades = _grades(folder, "judge")
    assert grades == {0: 3, 1: 0} | {done - 1: done % 4 for done in range(3, num_pairs + 1)}
    told = (tmp_path / "log").read_text()
    for row, side in (("champion", 0), ("challenger", 1)):
        bad = judged = 0.0
        for number, query in enumerate(drawn["queries"]):
            given = {
                pair["ad"]: grades[place]
                for place, pair in enumerate(drawn["pairs"])
                if pair["query"] == number
            }
            assert {*given} == {*query["answers"][0], *query["answers"][1]}
            bad += query["weight"] * sum(given[ad] < 1.5 for ad in query["answers"][side])
            judged += query["weight"] * 5
        (value,) = re.findall(rf"{row} .*?\+(\d+\.\d) \[", told)
        assert float(value) == pytest.approx(100 * bad / judged, abs=0.051)
    texts = Dataset(dataset_path).read("ads")["text"].to_pylist()
    rows = pq.read_table(folder / "judgements.parquet").to_pylist()
    assert [(row["ad"], row["grade"], row["source"]) for row in rows] == [
        (texts[drawn["pairs"][pair]["ad"]], grade, "judge") for pair, grade in grades.items()
    ]


def test_models_judge_through_files_and_bad_lines_are_told(words, done, refused, tmp_path):
    folder = tmp_path / "j"
    prompts = tmp_path / "prompts"
    grades = tmp_path / "grades"
    done(judge, *words, "--export-prompts", prompts)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    drawn = _drawn(folder)
    assert [row["pair"] for row in rows] == [*range(len(drawn["pairs"]))]
    assert len({(pair["query"], pair["ad"]) for pair in drawn["pairs"]}) == len(rows)
    for row, pair in zip(rows, drawn["pairs"], strict=True):
        assert pair["text"] in row["prompt"]
        assert drawn["queries"][pair["query"]]["text"] in row["prompt"]
    # queries are drawn more often where answers differ
    answers = [
        (set(ours), set(theirs)) for ours, theirs in (q["answers"] for q in drawn["queries"])
    ]
    differing = [len(ours - theirs) for ours, theirs in answers]
    chances = [1 / query["weight"] for query in drawn["queries"]]
    assert np.corrcoef(differing, chances)[0, 1] > 0.2
    grades.write_text("")
    imports = (judge, *words, "--import-grades", grades, "--judge")
    assert f"0 of {NUM_QUERIES} queries are judged" in done(*imports, "llm")
    fine = [json.dumps({"pair": row["pair"], "grade": row["pair"] % 4}) for row in rows]
    bad = ['{"pair": 0, "grade": 4}', "{", "[]", '{"pair": -1, "grade": 0}', '{"pair": true}']
    for line in bad:
        grades.write_text("\n".join([*fine, line]))
        assert f"row {len(fine) + 1}" in refused(*imports, "llm")
        assert not (folder / "llm.jsonl").exists()
    grades.write_text("\n".join(fine))
    assert f"{NUM_QUERIES} of {NUM_QUERIES} queries are judged" in done(*imports, "llm")
    by_hand = folder / "by_hand.jsonl"
    by_hand.write_text('{"pair": 0, "grade": 2}\n{"pair": 1, "grade": "good"}\n')
    assert f"{by_hand}, row 2" in refused(*imports, "llm")
    by_hand.unlink()
    whole = (folder / "drawn.json").read_text()
    (folder / "drawn.json").write_text(whole[:-9])
    assert "drawn.json" in refused(judge, *words, "--export-prompts", prompts)
    (folder / "drawn.json").write_text(whole)
    assert "kappa 1.00" in done(*imports, "other")
    assert "--judgements" in refused(judge, *words, "--seed", 1, "--export-prompts", prompts)


def test_the_page_takes_grades_from_this_machine_only(words, run_here, tmp_path):
    run_here(judge, *words, "--export-prompts", tmp_path / "prompts")
    judging = Judging(tmp_path / "j")
    page = JudgePage(judging, "me")
    client = TestClient(page.server.config.app, "http://127.0.0.1:5005")
    assert client.get("/state").json()["done"] == 0
    assert client.get("/state", headers={"Host": "elsewhere.example"}).status_code == 400
    fine = {"pair": 0, "grade": 2}
    assert client.post("/grade", data=fine).status_code == 400
    odd = [[], {}, {"pair": 0, "grade": 4}, {"pair": 10**6, "grade": 1}]
    for said in (*odd, {"pair": True, "grade": 1}, {"pair": 0}):
        assert client.post("/grade", json=said).status_code == 400
    assert judging.judges == []
    assert client.post("/grade", json=fine).json()["done"] == 1
    assert client.post("/grade", json={"pair": 0, "grade": None}).json()["done"] == 0
    assert judging.grades("me") == {}
