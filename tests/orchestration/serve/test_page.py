"""The page, why an ad answers, and a challenger beside the champion."""

import random
import threading

import numpy as np
import pytest
from browser import browser_page, needs_chromium
from playwright.sync_api import expect
from serving import asked, figures_at, serving, with_markets
from starlette.testclient import TestClient
from support import PATIENCE_S, wait_until, write_rows

from jobs import index, promote
from ramen_ray.data.store.dataset import Dataset
from ramen_ray.orchestration.serve import held, lane
from ramen_ray.orchestration.serve.server import app_of
from ramen_ray.orchestration.serve.settings import ServerSettings
from ramen_ray.tracking.registry import ask, uri_of
from ramen_ray.tracking.runs import Run

QUERY = "robin nest"
CHAMPION = "models:/page@champion"
CHALLENGER = "models:/page@challenger"


@pytest.fixture(scope="module")
def registry(store, dataset_path, tmp_path_factory):
    """A store with a champion whose ads have a market, one of which never has clicks, and more."""
    path = with_markets(dataset_path, tmp_path_factory.mktemp("page") / "mine")
    made = store.registry
    store.champion("page", 3.0, dataset_path)
    made.client.set_registered_model_alias("page", "challenger", "1")
    store.champion("page", 0.0, path)
    return made


def test_why_tells_the_clicks_and_the_anchors_of_an_ad(registry, dataset_path):
    dataset = Dataset(dataset_path)
    queries = dataset.read("queries/train").to_pylist()
    ads = dataset.read("ads")["text"].to_pylist()
    embed = registry.load(CHAMPION).embed

    def nearest(rows):
        texts = [row["text"] for row in rows]
        return sorted((embed(texts) @ embed([QUERY])[0]).tolist(), reverse=True)[:5]

    tables = {name: dataset.read(name).to_pylist() for name in dataset.tables}
    kinds = set()
    with TestClient(app_of(registry, CHAMPION)) as client:
        for ad in (0, 5, 22, 39):
            asked_for = {"query": QUERY, "ad_id": f"{ad}"}
            clicks, *sets = client.get("/why", params=asked_for).json()
            groups = [(clicks, [row for row in queries if ad in row["ad_ids"]])]
            for reason in sets:
                edges = f"edges/{reason['by']}"
                anchors = [row["text"] for row in tables[f"anchors/{reason['by']}"]]
                of_ad = [row["anchor_id"] for row in tables[f"{edges}/ad"] if row["ad_id"] == ad]
                assert sorted(reason["anchors"]) == sorted(anchors[anchor] for anchor in of_ad)
                linked = {
                    row["query_id"] for row in tables[f"{edges}/query"] if row["anchor_id"] in of_ad
                }
                groups.append((reason, [row for row in queries if row["query_id"] in linked]))
            assert [reason["by"] for reason in sets] == ["links", "topics"]
            for reason, expected in groups:
                kinds.add((reason["by"], bool(expected)))
                assert reason["number"] == len(expected)
                scores = [query["score"] for query in reason["queries"]]
                if expected:
                    np.testing.assert_allclose(scores, nearest(expected), atol=1e-6)
                for query in reason["queries"]:
                    alike = [row["ad_ids"] for row in expected if row["text"] == query["text"]]
                    led_to = [[ads[ad] for ad in clicked][:5] for clicked in alike]
                    assert sorted(query["ads"]) in map(sorted, led_to)
        assert {(None, True), ("links", True), ("topics", False)} <= kinds
        assert client.get("/why", params={"query": QUERY, "ad_id": "unknown"}).json() == []
    hidden = TestClient(app_of(registry, CHAMPION, ServerSettings(page=False)))
    assert [hidden.get(path).status_code for path in ("/", "/why")] == [404, 404]


def test_a_setting_that_a_run_was_logged_without_is_named(
    store, dataset_path, refused, monkeypatch, tmp_path
):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "log_parameters", lambda *_: None)
        run_id = store.run(0.0, dataset_path)
    registry = store.registry
    uri = uri_of(registry.find_logged(run_id, None)[1])
    with TestClient(app_of(registry, uri)) as client:
        answered = client.get("/why", params={"query": QUERY, "ad_id": "0"})
    assert answered.status_code == 400
    assert f"{run_id} was logged without the setting dataset" in answered.json()["error"]
    removed = write_rows(tmp_path / "gone.csv", "ad_id", [["0"]])
    for job, words, setting in (
        (promote, [run_id, "--name", "bare"], "training.selection_metric"),
        (index, ["--model", uri, "--remove", removed], "experiment"),
    ):
        assert setting in refused(job, *words, "--output", store.output)


def test_a_challenger_is_asked_after_the_answer(registry, monkeypatch):
    texts = [QUERY, "oak", "ship", "saw"]
    champion, challenger = (registry.load(uri) for uri in (CHAMPION, CHALLENGER))
    answers = [model.answer(texts)["ad_ids"].to_pylist() for model in (champion, challenger)]
    overlaps = [len({*ours} & {*theirs}) / 10 for ours, theirs in zip(*answers, strict=True)]
    assert 0 < sum(overlaps) < len(texts)
    may_answer = threading.Event()

    def ask_later(retriever, queries, params):
        if not retriever.ads.columns:  # those of the challenger have none
            may_answer.wait(PATIENCE_S)
        return ask(retriever, queries, params)

    monkeypatch.setattr(held, "ask", ask_later)
    monkeypatch.setattr(lane, "SHADOWS_WAITING", 1)
    settings = ServerSettings(shadow=CHALLENGER, shadow_share=1.0)

    def count(status):
        return figures_at(port).get(f'ramen_shadow_requests_total{{status="{status}"}}', 0)

    with serving(app_of(registry, CHAMPION, settings)) as port:
        for _ in range(4):
            status, headers, _ = asked(port, "/invocations", {"inputs": texts})
            assert (status, headers["X-Model"]) == (200, "models:/page/2")
        wait_until(lambda: count(503) == 2, "nothing is left out")  # one is asked, one waits
        assert count(200) == 0
        may_answer.set()
        wait_until(lambda: count(200) == 2, "the challenger is not asked")
        only = {"inputs": texts, "params": {"filter": {"market": "DE"}}}
        assert asked(port, "/invocations", only)[0] == 200
        wait_until(lambda: count(400) == 1, "a filter that it lacks is not counted")
        status, headers, content = asked(port, "/shadow", {"inputs": texts})
        assert (status, headers["X-Model"]) == (200, "models:/page/1")
        assert [row["ad_ids"] for row in content["predictions"]] == answers[1]
        figures = figures_at(port)
        assert figures["ramen_shadow_overlap_sum"] == pytest.approx(2 * sum(overlaps))
        assert figures["ramen_shadow_overlap_count"] == 2 * len(texts)
        assert figures["ramen_shadow_request_seconds_count"] == 5
        assert asked(port, "/health")[2]["shadow"]["model"] == "models:/page/1"
    draw = random.Random(0)
    drawn = sum(draw.random() < 0.5 for _ in range(9))  # the same each time
    half = ServerSettings(shadow=CHALLENGER, shadow_share=0.5)
    with serving(app_of(registry, CHAMPION, half)) as port:
        for _ in range(9):
            assert asked(port, "/invocations", {"inputs": texts})[0] == 200
        wait_until(lambda: count(200) + count(503) == drawn, "others are asked")


@needs_chromium
def test_the_page_in_a_browser(registry, tmp_path):
    settings = ServerSettings(shadow=CHALLENGER)
    expected = registry.load(CHAMPION).answer([QUERY], 3, {"market": "<b>FR</b>"}).to_pylist()
    with serving(app_of(registry, CHAMPION, settings)) as port, browser_page() as page:
        faults = []
        loaded = []
        page.on("pageerror", lambda error: faults.append(error))
        page.on("console", lambda told: faults.append(told.text))
        page.on("request", lambda request: loaded.append(request.url))
        page.goto(f"http://127.0.0.1:{port}/#q=robin+nest&k=3&f.market=%3Cb%3EFR%3C%2Fb%3E")
        champion, challenger = (page.locator("section").nth(place) for place in (0, 1))
        ads = champion.locator(".line > span:nth-child(2)")
        expect(ads).to_have_count(3)
        shown = [text.rsplit(" ", 1)[0].strip() for text in ads.all_inner_texts()]
        assert shown == expected[0]["ads"]
        expect(challenger.locator(".line")).to_have_count(3)
        expect(champion).to_contain_text("models:/page/2")
        expect(challenger).to_contain_text("models:/page/1")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(champion.locator(".reasons").first).to_contain_text("led to it")
        page.get_by_label("market").fill("DE")
        page.get_by_label("market").press("Enter")
        expect(champion.locator(".chip").first).to_have_text("market: DE")
        assert "f.market=DE" in page.url
        page.go_back()
        expect(champion.locator(".chip").first).to_have_text("market: <b>FR</b>")
        page.keyboard.press("Escape")
        page.keyboard.type("zzz qqq")
        page.keyboard.press("Enter")
        expect(champion.locator(".doubt")).to_contain_text("unknown words")
        for width, scheme in ((360, "dark"), (1200, "light")):
            page.set_viewport_size({"width": width, "height": 700})
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert not faults
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in loaded)
