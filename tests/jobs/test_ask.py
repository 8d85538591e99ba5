"""Queries asked in a terminal: which retriever answers, and what is printed."""

import json

from jobs import ask


def _rows(printed):
    table = [line for line in printed.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in table]


def test_a_query_is_answered_by_the_run_that_is_named_or_finished_last(store, done, dataset_path):
    run_id = store.run(0.0, dataset_path)
    uri = f"models:/{store.registry.find_logged(run_id, None)[1]}"
    notes = {
        "old": {"mlflow_run_id": "0" * 32},
        "mine": {"mlflow_run_id": run_id, "finished": True},
    }
    for name, content in notes.items():
        folder = store.output / "runs" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(content))
    ads = ["--top-k", "2", "--output", store.output]
    printed = done(ask, "robin nest", "oak", *ads)
    first, second, *others = _rows(printed)
    expected = store.registry.load(uri).answer(["robin nest"], 2)
    (answer,) = expected.to_pylist()
    scores = [f"{score:.3f}" for score in answer["scores"]]
    assert [first, second] == [
        ["robin nest", answer["ads"][0], answer["ad_ids"][0], scores[0]],
        ["", answer["ads"][1], answer["ad_ids"][1], scores[1]],
    ]
    assert [row[0] for row in others] == ["oak (doubted: unknown words)", ""]
    assert f"asked: {uri}\nnext:  python jobs/predict.py --model {uri} " in printed
    for named in (uri, store.output / "runs" / "mine", run_id):
        assert _rows(done(ask, "robin nest", "--model", named, *ads)) == [first, second]
